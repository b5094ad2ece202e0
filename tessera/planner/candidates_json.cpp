#include "tessera/planner/candidates_json.h"

#include "tessera/base/choice.h"
#include "tessera/base/json/parse.h"
#include "tessera/planner/objective.h"
#include "tessera/planner/to_config.h"

namespace tessera::planner {

namespace {

OrderedJson stage_of(const cost::Strategy& strategy, const cost::StageCost& stage, int rank) {
  OrderedJson runs = OrderedJson::array();
  int layers = 0;
  for (int turn = rank; turn < strategy.stages(); turn += strategy.pp) {
    const auto [first, last] = strategy.layers_of(turn);
    OrderedJson run = OrderedJson::array();
    run.push_back(first);
    run.push_back(last - first);
    runs.push_back(std::move(run));
    layers += last - first;
  }
  return {
      {"first_layer", strategy.layers_of(rank).first},
      {"layers", layers},
      {"runs_of_layers", std::move(runs)},
      {"needed_bytes", stage.needed_bytes},
      {"device_bytes", stage.device_bytes},
      {"host_bytes", stage.host_bytes},
      {"memory_bytes",
       {{"weights", stage.memory.weights},
        {"gradients", stage.memory.gradients},
        {"optimizer", stage.memory.optimizer},
        {"activations", stage.memory.activations},
        {"working", stage.memory.working},
        {"logits", stage.memory.logits}}}};
}

OrderedJson known(double value) {
  return value > 0 ? OrderedJson(value) : OrderedJson();
}

OrderedJson strategy_of(
    const Candidate& candidate,
    const cost::DescribedModel& model,
    const cost::Cluster& cluster) {
  const cost::Strategy& strategy = candidate.strategy;
  const cost::StrategyCost& cost = candidate.cost;
  const auto reason = not_runnable(candidate, model);
  OrderedJson stages = OrderedJson::array();
  for (std::size_t k = 0; k < cost.stages.size(); ++k) {
    stages.push_back(stage_of(strategy, cost.stages[k], static_cast<int>(k)));
  }
  OrderedJson json;
  json["seconds"] = candidate.seconds();
  const StepCosts costs = step_costs(candidate, cluster);
  json["price"] = known(costs.price);
  json["joules"] = known(costs.joules);
  json["simulated_seconds"] = known(candidate.simulated_seconds);
  json["estimated_seconds"] = cost.seconds;
  json["estimated_range"] = {cost.seconds_range.low, cost.seconds_range.high};
  json["estimated_parts"] = {
      {"compute", cost.compute_seconds},
      {"tensor", cost.tensor_seconds},
      {"waiting", cost.waiting_seconds},
      {"bubble", cost.bubble_seconds},
      {"shared_cores", cost.shared_cores_seconds},
      {"transfer", cost.transfer_seconds},
      {"gradient", cost.gradient_seconds},
      {"optimizer", cost.optimizer_seconds},
      {"stall", cost.stall_seconds}};
  json["needed_bytes"] = cost.needed_bytes();
  json["runnable"] = !reason.has_value();
  json["not_runnable_because"] = reason ? OrderedJson(*reason) : OrderedJson();
  json["pipeline_parallel_degree"] = strategy.pp;
  json["stages_per_rank"] = strategy.stages_per_rank;
  json["tensor_parallel_degree"] = strategy.tp;
  json["reduced_data_parallel_degree"] = strategy.dp;
  json["distribution"] = std::string(text_of(strategy.distribution));
  json["same_samples"] = strategy.same_samples;
  json["microbatch_size"] = strategy.microbatch_size;
  json["replica_microbatch"] = strategy.replica_microbatch.empty()
                                   ? OrderedJson()
                                   : OrderedJson(strategy.replica_microbatch);
  OrderedJson whole = OrderedJson::array();
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    if (strategy.is_whole(i)) {
      whole.push_back(i);
    }
  }
  json["whole_layers"] = std::move(whole);
  json["microbatches"] = strategy.microbatches(model.global_batch_size);
  json["placement"] = strategy.placement;
  json["schedule"] = std::string(text_of(strategy.schedule));
  json["active_microbatches"] = strategy.active_microbatches;
  json["fast_mode"] = strategy.fast_mode;
  json["activation_checkpointing"] = strategy.activation_checkpointing;
  json["recomputation"] = recomputation_of(strategy);
  json["shard_optimizer_state"] = strategy.shard_optimizer_state;
  json["shard_parameters"] = strategy.shard_parameters;
  json["offload_optimizer_state"] = strategy.offload_optimizer_state;
  json["offload_activations"] = strategy.offload_activations;
  json["devices"] = strategy.devices();
  json["device_of_rank"] = strategy.device_of_rank;
  json["node_order"] = candidate.node_order;
  json["stages"] = std::move(stages);
  return json;
}

} // namespace

std::string to_json(
    const SearchResult& result,
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    std::optional<double> in_fast_mode) {
  const auto all_of = [&](const std::vector<Candidate>& candidates) {
    OrderedJson strategies = OrderedJson::array();
    for (const Candidate& candidate : candidates) {
      strategies.push_back(strategy_of(candidate, model, cluster));
    }
    return strategies;
  };
  OrderedJson json;
  json["model"] = model.name;
  json["cluster"] = cluster.name;
  json["global_batch_size"] = model.global_batch_size;
  json["considered"] = result.considered;
  json["interrupted"] = result.interrupted;
  json["prefers_simplest"] = result.prefers_simplest;
  json["lower_bound_seconds"] = known(result.lower_bound);
  if (in_fast_mode) {
    json["first_in_fast_mode_seconds"] = *in_fast_mode;
  }
  json["strategies"] = all_of(result.best);
  json["front"] = all_of(result.front);
  return indented(json, 2) + "\n";
}

} // namespace tessera::planner
