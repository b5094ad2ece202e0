// Cuts of pipelines that the simulator chooses, behind the estimate's.
#include "tessera/planner/cut_moves.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/index.h"
#include "tessera/planner/pricer.h"
#include "tessera/planner/search.h"

#include "tests/unit/cost/drawn_cases.h"
#include "tests/unit/cost/small_cases.h"

namespace tessera::planner {
namespace {

// Moves one cut by one layer in every way, and returns the least simulated seconds of what fits.
double fastest_neighbour(const Pricer& pricer, const cost::Strategy& strategy) {
  double fastest = std::numeric_limits<double>::infinity();
  for (int cut = 1; cut < strategy.stages(); ++cut) {
    for (const int layers : {-1, 1}) {
      cost::Strategy moved = strategy;
      moved.boundaries[at(cut)] += layers;
      const auto& cuts = moved.boundaries;
      const bool empty =
          std::adjacent_find(cuts.begin(), cuts.end(), std::greater_equal<>()) != cuts.end();
      if (!empty && pricer.priced(moved).cost.fits()) {
        fastest = std::min(fastest, pricer.simulated_seconds(moved));
      }
    }
  }
  return fastest;
}

TEST(CutMoves, LeaveNoFasterNeighbour) {
  int pipelines = 0;
  int moved = 0;
  for (unsigned seed = 0; seed < 150; ++seed) {
    SCOPED_TRACE(seed);
    cost::Draw draw(9'000'000 + seed);
    const cost::DescribedModel model = cost::drawn_model(draw, 8);
    const cost::Cluster cluster = cost::drawn_cluster(draw, 2);
    SearchOptions options;
    options.keep = 4;
    options.simulate = 4;
    options.tensor_degree = 1;
    options.constants = cost::runtime_constants(cluster, model.precision);
    const Pricer pricer(model, cluster, options);
    try {
      const Candidate best = search(model, cluster, options).best.front();
      if (best.strategy.pp > 1) {
        ++pipelines;
        EXPECT_GE(fastest_neighbour(pricer, best.strategy), 0.989 * best.simulated_seconds);
        auto by_estimate = pricer.assigned(best.strategy, pricer.table({}));
        moved += by_estimate && by_estimate->strategy.boundaries != best.strategy.boundaries;
      }
    } catch (const Error&) { // nothing fits
    }
  }
  EXPECT_GT(pipelines, 20);
  EXPECT_GT(moved, 3);
}

// The estimate counts a message once an iteration, where the links are what a step waits for.
TEST(CutMoves, GoRoundALargeMessage) {
  cost::DescribedModel model = cost::small_model(8);
  model.global_batch_size = 16;
  model.layers[5].output_elements_per_sample *= 30'000;
  cost::Cluster cluster = cost::small_cluster(2, 0);
  for (auto& node : cluster.nodes) {
    node.count = 2;
  }
  SearchOptions options;
  options.tensor_degree = 1;
  options.keep = 20;
  const auto best_of_four = [&](int simulate) {
    options.simulate = simulate;
    std::vector<Candidate> found = search(model, cluster, options).best;
    std::erase_if(found, [](const Candidate& one) { return one.strategy.pp != 4; });
    return found.front();
  };
  const Candidate estimated = best_of_four(0);
  const Candidate simulated = best_of_four(20);
  const Pricer pricer(model, cluster, options);
  EXPECT_LT(simulated.simulated_seconds, 0.8 * pricer.simulated_seconds(estimated.strategy));
}

} // namespace
} // namespace tessera::planner
