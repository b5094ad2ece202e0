#include "tessera/cost/collective.h"

namespace tessera::cost {

Traffic ring_traffic(const std::string& operation, int ranks, double bytes) {
  const double n = ranks;
  Traffic traffic{.wire_bytes = bytes, .steps = 1};
  if (operation == "all_reduce") {
    traffic.wire_bytes *= 2 * (n - 1) / n;
    traffic.steps = 2 * (n - 1);
  } else if (operation == "all_gather") {
    traffic.wire_bytes *= n - 1;
    traffic.steps = n - 1;
  } else if (operation == "reduce_scatter" || operation == "all_to_all") {
    traffic.wire_bytes *= (n - 1) / n;
    traffic.steps = n - 1;
  }
  return traffic;
}

} // namespace tessera::cost
