#include "tessera/planner/fast_mode.h"

#include <cstdio>

#include "tessera/base/error.h"
#include "tessera/cost/links.h"
#include "tessera/planner/pricer.h"

namespace tessera::planner {

std::optional<double> fast_mode_seconds(
    const SearchResult& result,
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options) {
  constexpr double kWorthSaying = 0.9;
  if (result.best.empty() || result.best.front().simulated_seconds == 0 ||
      result.best.front().leaves_out) {
    return std::nullopt;
  }
  const Candidate& best = result.best.front();
  if (!cost::has_relays(best.strategy, model.returns_home)) {
    return std::nullopt;
  }
  cost::Strategy strategy = best.strategy;
  strategy.fast_mode = true;
  const double seconds = Pricer(model, cluster, options).simulated_seconds(strategy);
  return seconds > kWorthSaying * best.seconds() ? std::nullopt : std::optional(seconds);
}

std::string fast_mode_hint(std::optional<double> seconds) {
  if (!seconds) {
    return "";
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.4f", *seconds);
  return str(
      "  --fast-mode: the first takes ",
      text,
      " s if its stages send to each other and not through rank 0; for models whose calls are the "
      "same in every step\n");
}

} // namespace tessera::planner
