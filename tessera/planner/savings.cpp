#include "tessera/planner/savings.h"

#include <algorithm>
#include <utility>

#include "tessera/planner/runtime_abilities.h"

namespace tessera::planner {

namespace {

// Returns {false}, and true behind it where a further way may be taken.
std::vector<bool> without_and(bool with) {
  return with ? std::vector<bool>{false, true} : std::vector<bool>{false};
}

} // namespace

std::vector<Saving> savings_of(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options) {
  const RuntimeAbilities can = runtime_abilities();
  const bool any = !options.runnable_only;
  const bool recomputes = !model.activation_checkpointing &&
                          (any || options.can_recompute || can.activation_checkpointing);
  const bool shards = !options.shard_optimizer_state && (any || can.optimizer_sharding);
  // Plans that run are sharded on one node only: gathers between nodes were never measured.
  const bool divides = any || (can.parameter_sharding && cluster.nodes.size() == 1);
  const bool known = hosts_are_known(cluster);
  // Nobody knows which seconds of a measured model are products.
  const bool selects = model.traced() != nullptr || model.sized() != nullptr;
  std::vector<std::pair<bool, bool>> recomputations = {{false, false}}; // and of products
  if (recomputes) {
    recomputations.emplace_back(true, false);
    if (selects) {
      recomputations.emplace_back(true, true);
    }
  }
  std::vector<cost::Schedule> schedules = {options.schedule};
  if (options.compare_schedules) {
    schedules = {cost::Schedule::kInterleaved, cost::Schedule::kSimple};
  }
  std::vector<Saving> savings;
  for (const cost::Schedule schedule : schedules) {
    for (const bool state : without_and(shards)) {
      for (const auto& [recomputed, keeps_products] : recomputations) {
        // The runtime offloads only what recomputed layers keep.
        const bool offloads =
            known &&
            (any || (can.activation_offloading && (recomputed || model.activation_checkpointing)));
        for (const bool offloads_state :
             without_and(any && known && !options.offload_optimizer_state)) {
          for (const bool kept : without_and(offloads && !options.offload_activations)) {
            const bool sharded = state || options.shard_optimizer_state;
            for (const bool parameters :
                 without_and(divides && sharded && !options.shard_parameters)) {
              savings.push_back(
                  {recomputed, keeps_products, state, parameters, offloads_state, kept, schedule});
            }
          }
        }
      }
    }
  }
  return savings;
}

cost::DescribedModel with_saving(cost::DescribedModel model, const Saving& saving) {
  model.activation_checkpointing = model.activation_checkpointing || saving.recomputes;
  return model;
}

SearchOptions with_saving(SearchOptions options, const Saving& saving) {
  options.keep_products = options.keep_products || saving.keeps_products;
  options.shard_optimizer_state = options.shard_optimizer_state || saving.shards_state;
  options.shard_parameters = options.shard_parameters || saving.shards_parameters;
  options.offload_optimizer_state = options.offload_optimizer_state || saving.offloads_state;
  options.offload_activations = options.offload_activations || saving.offloads_activations;
  options.schedule = saving.schedule;
  return options;
}

} // namespace tessera::planner
