#include "tessera/planner/pipeline_variants.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "tessera/planner/fastest_of.h"
#include "tessera/planner/pricer.h"
#include "tessera/planner/space.h"

namespace tessera::planner {

namespace {

// The fixed order of one forward, one backward says nothing of turns. Layers are assigned to turns
// for equal replicas only.
bool has_turns(const cost::Strategy& strategy) {
  return strategy.pp > 1 && strategy.stages_per_rank == 1 && strategy.replica_microbatch.empty() &&
         (strategy.active_microbatches > 0 || strategy.schedule == cost::Schedule::kSimple);
}

// Returns how many microbatches may be in flight: as many as without turns, and two for each rank.
std::set<int> in_flight_of(const cost::Strategy& strategy, int microbatches) {
  const int own = strategy.active_microbatches;
  if (own == 0) {
    return {0};
  }
  return {own, std::max(own, std::min(microbatches, 2 * strategy.pp))};
}

} // namespace

void add_pipeline_variants(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options,
    std::vector<Candidate>& best) {
  constexpr std::size_t kMostStrategies = 8;
  // What is faster by less is so by rounding of layers more than by turns.
  constexpr double kWorthIt = 0.995;
  const Pricer pricer(model, cluster, options);
  const int layers = static_cast<int>(model.layers.size());
  const auto may_turn = [](const Candidate& candidate) {
    return has_turns(candidate.strategy) && candidate.microbatches > 1;
  };
  std::vector<Candidate> found;
  for (const std::size_t index : fastest_of(best, kMostStrategies, may_turn)) {
    const Candidate& plain = best[index];
    const cost::LayerTable table(model, cluster, plain.strategy, options.constants);
    std::optional<Candidate> fastest;
    const auto try_variant = [&](int stages, int in_flight, bool relayed_cuts) {
      cost::Strategy strategy = plain.strategy;
      strategy.stages_per_rank = stages;
      strategy.active_microbatches = in_flight;
      strategy.fast_mode = plain.strategy.fast_mode && !relayed_cuts;
      auto candidate = pricer.assigned(std::move(strategy), table);
      if (!candidate || (options.runnable_only && ties_apart(candidate->strategy, model))) {
        return;
      }
      if (relayed_cuts) {
        candidate->strategy.fast_mode = true;
        candidate = pricer.priced(std::move(candidate->strategy));
      }
      candidate->node_order = plain.node_order;
      candidate->can_recompute = plain.can_recompute;
      candidate->microbatches = plain.microbatches;
      candidate->simulated_seconds = pricer.simulated_seconds(candidate->strategy);
      const double limit = fastest ? fastest->seconds() : plain.seconds() * kWorthIt;
      if (candidate->seconds() < limit) {
        fastest = std::move(candidate);
      }
    };
    const int most = std::min(options.most_stages_per_rank, layers / plain.strategy.pp);
    for (int stages = 1; stages <= most; ++stages) {
      for (const int in_flight : in_flight_of(plain.strategy, plain.microbatches)) {
        if (options.stop != nullptr && options.stop->load()) {
          break;
        }
        const bool own_number = in_flight == plain.strategy.active_microbatches;
        if (stages == 1 && !own_number && options.active_microbatches > 0) {
          continue; // without turns a number that was asked for stays
        }
        if (stages > 1 || !own_number) { // else it is the plain one
          try_variant(stages, in_flight, false);
        }
        // The estimate assigns layers, and the simulator may find what it would cut without fast
        // mode faster in fast mode too.
        if (plain.strategy.fast_mode) {
          try_variant(stages, in_flight, true);
        }
      }
    }
    if (fastest) {
      found.push_back(std::move(*fastest));
    }
  }
  std::move(found.begin(), found.end(), std::back_inserter(best));
}

} // namespace tessera::planner
