#include "tessera/planner/to_config.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/planner/planned_config.h"
#include "tessera/planner/runtime_abilities.h"
#include "tessera/planner/space.h"

namespace tessera::planner {

namespace {

// Sets the degrees, and what is divided among the ranks of each.
void set_degrees(const cost::Strategy& strategy, config::Config& config) {
  config.pipeline_parallel_degree = strategy.pp;
  config.tensor_parallel_degree = strategy.tp;
  if (strategy.tp > 1) {
    using cost::Distribution;
    const Distribution distribution = strategy.distribution;
    config.tensor_parallel_kind = distribution == Distribution::kMesh ? "2d" : "1d";
    // Layers of a measured model (kAsMeasured) are divided as in Megatron-LM, which is "speed".
    config.optimize = distribution == Distribution::kMemory ? "memory" : "speed";
    config.prescaled_batch = strategy.same_samples;
  }
  config.ddp = strategy.dp > 1 || strategy.tp > 1;
  const bool parameters = strategy.shard_parameters && strategy.dp > 1;
  // The degree includes the optimizer's state.
  config.sharded_data_parallel_degree = parameters ? strategy.dp : 1;
  config.shard_optimizer_state = strategy.shard_optimizer_state && config.ddp && !parameters;
}

config::Config
config_of(const Candidate& candidate, const plans::Plan& plan, const cost::DescribedModel& model) {
  config::Config config;
  set_degrees(candidate.strategy, config);
  config.microbatches = plan.microbatches;
  for (const int samples : candidate.strategy.replica_microbatch) {
    config.replica_samples.push_back(samples * plan.microbatches);
  }
  config.pipeline = plan.schedule;
  config.active_microbatches = plan.active_microbatches;
  config.static_mode = config.fast_mode = candidate.strategy.fast_mode;
  config.placement_strategy = plan.placement;
  config.auto_partition = false;
  config.partition = plan.partition;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    if (candidate.strategy.is_whole(i)) {
      config.tensor_parallel_degree_of[model.layers[i].name] = 1;
    }
  }
  config.offload_activations = candidate.strategy.offload_activations;
  return config;
}

} // namespace

std::optional<std::string> sharding_refusal(const cost::Strategy& strategy) {
  config::Config config;
  set_degrees(strategy, config);
  try {
    config::validate(config);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return std::nullopt;
}

std::string recomputation_of(const cost::Strategy& strategy) {
  return !strategy.activation_checkpointing ? "none"
         : strategy.keeps_products          ? "selective"
                                            : "each";
}

plans::Plan to_plan(const Candidate& candidate, const cost::DescribedModel& model) {
  const cost::Strategy& strategy = candidate.strategy;
  plans::Plan plan;
  plan.model = model.name;
  plan.degrees = {.pipeline = strategy.pp, .tensor = strategy.tp, .reduced_data = strategy.dp};
  plan.placement = strategy.placement.empty() ? "PDT" : strategy.placement;
  plan.schedule = text_of(strategy.schedule);
  plan.microbatches = strategy.microbatches(model.global_batch_size);
  plan.active_microbatches = strategy.active_microbatches;
  plan.partition[""] = 0;
  // The model that is trained is the divided one, so the plan uses its module names.
  const cost::DividedModel* divided =
      model.divided_in({strategy.tp, strategy.distribution, strategy.same_samples});
  const std::vector<cost::Layer>& layers = divided != nullptr ? divided->layers : model.layers;
  for (int k = 0; k < strategy.stages(); ++k) {
    const auto [first, last] = strategy.layers_of(k);
    for (int i = first; i < last; ++i) {
      // Stages are dealt to the ranks in turns.
      plan.partition[layers[static_cast<std::size_t>(i)].name] = k % strategy.pp;
    }
  }
  return plan;
}

std::optional<std::string> not_runnable(
    const Candidate& candidate,
    const cost::DescribedModel& model) {
  const cost::Strategy& strategy = candidate.strategy;
  const RuntimeAbilities can = runtime_abilities();
  if (strategy.placement.empty()) {
    return "its placement is none of the runtime's placement strategies";
  }
  if (strategy.tp > 1 && !can.tensor_parallelism) {
    return "it has a tensor-parallel degree of " + std::to_string(strategy.tp) +
           ", which this version cannot train with";
  }
  if (!strategy.replica_microbatch.empty() && !can.unlike_samples) {
    return "its replicas take unlike numbers of samples, which this version cannot do";
  }
  if (!strategy.whole_layers.empty() && !can.whole_layers) {
    return "it divides some layers and leaves others whole, which this version cannot do";
  }
  const auto undivided = [&](int samples) { return samples % strategy.tp != 0; };
  const std::vector<int> sizes = strategy.replica_microbatch.empty()
                                     ? std::vector<int>{strategy.microbatch_size}
                                     : strategy.replica_microbatch;
  const auto found = std::find_if(sizes.begin(), sizes.end(), undivided);
  if (!strategy.same_samples && found != sizes.end()) {
    return "its microbatches of " + std::to_string(*found) +
           " samples cannot be divided over the " + std::to_string(strategy.tp) +
           " ranks of a tensor-parallel group, which bring samples of their "
           "own";
  }
  if (strategy.shard_optimizer_state && !can.optimizer_sharding) {
    return "it shards the optimizer state, which this version cannot do";
  }
  if (strategy.shard_parameters && !can.parameter_sharding) {
    return "it divides parameters and gradients among replicas, which this version cannot do";
  }
  if (strategy.shard_parameters) {
    if (const auto refusal = sharding_refusal(strategy)) {
      return "it divides parameters and gradients among replicas: " + *refusal;
    }
  }
  if (strategy.offload_optimizer_state) {
    return "it keeps the optimizer's state in the host's memory, which this version cannot do";
  }
  if (strategy.offload_activations &&
      !(strategy.activation_checkpointing && can.activation_offloading)) {
    return "it offloads what every forward keeps, and the runtime offloads only what activation "
           "checkpointing keeps";
  }
  if (strategy.activation_checkpointing && !can.activation_checkpointing &&
      !candidate.can_recompute) {
    return str(
        "it recomputes the activations of every layer",
        strategy.keeps_products ? " but products" : "",
        ", which a plan cannot say; write \"activation_checkpointing\": \"",
        strategy.keeps_products ? "selective" : "each",
        "\" into the job");
  }
  if (!can.shared_parameters_apart && ties_apart(strategy, model)) {
    return "layers that share parameters are on different pipeline ranks";
  }
  if (strategy.pp > 1 && strategy.active_microbatches == 0 && !can.fixed_order) {
    return "it is priced in the fixed order of one forward, one backward, which is not the "
           "runtime's; search only for what runs";
  }
  return std::nullopt;
}

config::Config to_config(const Candidate& candidate, const cost::DescribedModel& model) {
  if (const auto reason = not_runnable(candidate, model)) {
    throw PlanError(str("the strategy is priced but not runnable in this version: ", *reason));
  }
  config::Config config = config_of(candidate, to_plan(candidate, model), model);
  config::validate(config);
  return config;
}

std::string to_config_json(const Candidate& candidate, const cost::DescribedModel& model) {
  return to_short_json(to_config(candidate, model)) + "\n";
}

} // namespace tessera::planner
