#include "tessera/planner/fast_mode.h"

#include <cstdio>

#include "tessera/base/error.h"
#include "tessera/cost/links.h"
#include "tessera/planner/pricer.h"

namespace tessera::planner {

std::string fast_mode_hint(
    const SearchResult& result,
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options) {
  constexpr double kWorthSaying = 0.9;
  if (result.best.empty() || result.best.front().simulated_seconds == 0 ||
      result.best.front().leaves_out) {
    return "";
  }
  const Candidate& best = result.best.front();
  if (!cost::has_relays(best.strategy, model.returns_home)) {
    return "";
  }
  cost::Strategy strategy = best.strategy;
  strategy.fast_mode = true;
  const double seconds = Pricer(model, cluster, options).simulated_seconds(strategy);
  if (seconds > kWorthSaying * best.seconds()) {
    return "";
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.4f", seconds);
  return str(
      "  --fast-mode: the first takes ",
      text,
      " s if its stages send to each other and not through rank 0; for models whose calls are the "
      "same in every step\n");
}

} // namespace tessera::planner
