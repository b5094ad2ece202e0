#include "tessera/planner/simplest.h"

#include <algorithm>
#include <tuple>

#include "tessera/planner/to_config.h"

namespace tessera::planner {

bool prefer_simplest(
    std::vector<Candidate>& best,
    const cost::DescribedModel& model,
    const cost::Cluster& cluster) {
  if (best.empty() || cluster.quality.rounds == 0) {
    return false;
  }
  const double most = best.front().seconds() * (1 + kToldApart);
  const auto complexity = [](const Candidate& one) {
    const cost::Strategy& strategy = one.strategy;
    return std::tuple(strategy.tp, strategy.pp, strategy.stages_per_rank);
  };
  const bool must_run = !not_runnable(best.front(), model);
  auto simplest = best.begin();
  for (auto one = best.begin(); one != best.end() && one->seconds() <= most; ++one) {
    const bool simpler = complexity(*one) < complexity(*simplest);
    if (simpler && !(must_run && not_runnable(*one, model))) {
      simplest = one;
    }
  }
  const bool moves = simplest->seconds() > best.front().seconds();
  std::rotate(best.begin(), simplest, simplest + 1);
  return moves;
}

} // namespace tessera::planner
