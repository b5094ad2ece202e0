#include "tessera/cost/collective.h"

#include <cmath>

namespace tessera::cost {

Traffic ring_traffic(const std::string& operation, int ranks, int nodes, double bytes) {
  const double n = ranks;
  double share = 1; // of the bytes that a link carries
  int ways = 1; // around the ring
  double steps = 1; // of one way
  if (operation == "all_reduce") {
    share = 2 * (n - 1) / n;
    ways = 2;
    steps = n - 1;
  } else if (operation == "all_gather") {
    share = n - 1;
    steps = n - 1;
  } else if (operation == "reduce_scatter" || operation == "all_to_all") {
    share = (n - 1) / n;
    steps = n - 1;
  }
  steps *= ways;
  return {
      .wire_bytes = bytes * share,
      .steps = nodes > 1 ? steps : 0,
      .inside_steps = nodes > 1 ? 0 : steps};
}

Traffic tree_traffic(int ranks, int nodes, double bytes, double bandwidth_share) {
  Traffic traffic = ring_traffic("all_reduce", ranks, nodes, bytes / bandwidth_share);
  traffic.steps = 2 * std::ceil(std::log2(static_cast<double>(nodes)));
  traffic.inside_steps = 2 * std::ceil(static_cast<double>(ranks - nodes) / nodes);
  return traffic;
}

} // namespace tessera::cost
