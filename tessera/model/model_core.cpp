#include "tessera/model/model_core.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/deferred_init/delayed_init.h"
#include "tessera/half/convert.h"
#include "tessera/nn/module/interceptor.h"
#include "tessera/nn/module/marks.h"

namespace tessera::model {

ModelCore::ModelCore(
    Context& context,
    std::shared_ptr<torch::nn::Module> root,
    ModelOptions options)
    : context_(context.weak_from_this()),
      root_(std::move(root)),
      name_(options.name.empty() ? nn::type_name(*root_) : options.name),
      options_(std::move(options)) {
  check_options();
  convert();
  replace_modules();
  prepare_operations();
}

void ModelCore::check_options() const {
  if (options_.backward_passes_per_step < 1) {
    throw ConfigError(str(
        "backward_passes_per_step is ", options_.backward_passes_per_step, "; write 1 or more"));
  }
  if (options_.bucket_cap_mb <= 0) {
    throw ConfigError(str("bucket_cap_mb is ", options_.bucket_cap_mb, "; write more than 0"));
  }
  const int shards = context().config.sharded_data_parallel_degree;
  for (const auto& [name, value] :
       {std::pair("gradient_as_bucket_view", options_.gradient_as_bucket_view),
        std::pair("find_unused_parameters", options_.find_unused_parameters)}) {
    if (!value && shards > 1) {
      throw ConfigError(
          str("ModelOptions::",
              name,
              " of the model '",
              name_,
              "' is false, but with sharded_data_parallel_degree ",
              shards,
              " a rank has gradients of its parts alone, which no bucket holds; leave the option "
              "out"));
    }
  }
}

void ModelCore::prepare_operations() {
  const Config& config = context().config;
  if (config.partition_mode != config::PartitionMode::kOperations ||
      config.pipeline_parallel_degree == 1) {
    return;
  }
  // Any module may then have a rank of its own, because none is called.
  for (const auto& module : root_->modules()) {
    nn::mark_interceptable(module);
  }
  operations::CutOptions options;
  options.parts = config.pipeline_parallel_degree;
  options.balance = config.optimize == config::Optimize::kSpeed ? operations::Balance::kWork
                                                                : operations::Balance::kVariables;
  options.contiguous = config.contiguous;
  if (!config.auto_partition) {
    options.default_part = config.effective_default_partition();
  }
  operations_ = std::make_unique<operations::ModelOperations>(
      root_, name_, std::move(options), config.trace_execution_times);
}

void ModelCore::convert() {
  const Config& config = context().config;
  if (!config.fp16 && !config.bf16) {
    return;
  }
  converted_to_ = config.fp16 ? at::kHalf : at::kBFloat16;
  const tracer::DelayedInitScope delayed(tracer::has_delayed(*root_));
  half::convert(*root_, *converted_to_);
}

void ModelCore::enter(int number, const std::string& label) {
  number_ = number;
  label_ = label;
}

const plans::Plan& ModelCore::plan() const {
  if (released_) {
    throw ConfigError(
        str("the model '",
            label_,
            "' is an ordinary module since its cpu(): take what you need from the module "
            "(net()), or make a DistributedModel of it anew"));
  }
  if (!plan_) {
    throw ConfigError(
        str("the model '",
            label_,
            "' is not partitioned yet: that happens in the first step that calls it"));
  }
  return *plan_;
}

const runtime::ModuleTable& ModelCore::table() const {
  plan();
  return *table_;
}

const state::StateLayout& ModelCore::state_layout() const {
  plan();
  return *layout_;
}

// No rank owns it, averages its gradient or writes it to a checkpoint, and an optimizer would not
// move it.
void ModelCore::check_no_late_parameter() const {
  const auto is_late = [this](const at::Tensor& parameter) {
    return parameter.defined() && !placed_parameters_.contains(parameter.unsafeGetTensorImpl());
  };
  const auto parameters = root_->parameters();
  if (std::none_of(parameters.begin(), parameters.end(), is_late)) {
    return;
  }
  for (const auto& item : root_->named_parameters()) {
    if (is_late(item.value())) {
      throw UserError(str(
          "parameter '",
          item.key(),
          "' was registered after the model '",
          label_,
          "' had been divided among the ranks, or put in another one's place; register all "
          "parameters before the DistributedModel is made, and freeze those that are not trained "
          "yet (requires_grad_(false))"));
    }
  }
}

void ModelCore::begin_step(int microbatches) {
  scale_ = (options_.average_grads_across_microbatches ? 1.0 / microbatches : 1) * replica_.weight;
  if (!partitioned()) {
    return;
  }
  check_no_late_parameter();
  // In evaluation too: the last step in training gave each replica statistics of its own.
  share_buffers();
  plain_backward_->find_trainable();
  if (std::erase_if(shared_states_, [](const auto& state) { return state.expired(); }) > 0) {
    apply_shared_states();
  }
  if (shards_ != nullptr) {
    shards_->begin_step(microbatches);
  }
  gradients_->begin();
}

void ModelCore::broadcast_buffers() const {
  if (partitioned() && options_.broadcast_buffers) {
    broadcast_from(local_buffers(), replica_.first_dp, replica_.first_rdp);
  }
}

void ModelCore::share_buffers() {
  broadcast_buffers();
  if (std::exchange(replica_ends_, false)) {
    replica_ = {};
  }
}

void ModelCore::share_buffers_of_others() const {
  if (replica_.first_dp != 0 || replica_.first_rdp != 0) {
    broadcast_buffers();
  }
}

void ModelCore::set_comm_hook(data_parallel::CommHook hook) {
  const Config& config = context().config;
  const auto refused = [this](const std::string& text) {
    return ConfigError(str("register_comm_hook of the model '", label_, "': ", text));
  };
  if (!config.ddp) {
    throw refused("there are no replicas; write \"ddp\": true");
  }
  if (!options_.overlapping_allreduce) {
    throw refused(
        "a hook is called for each bucket while the backward runs; leave "
        "ModelOptions::overlapping_allreduce true");
  }
  if (config.shard_optimizer_state || config.sharded_data_parallel_degree > 1) {
    throw refused(
        "with shard_optimizer_state and sharded_data_parallel_degree an average goes to the rank "
        "that keeps it, not to all; leave the key out");
  }
  comm_hook_ = std::move(hook);
  if (gradients_ != nullptr) {
    gradients_->set_hook(comm_hook_);
  }
}

void ModelCore::end_microbatch() {
  if (shards_ != nullptr) {
    shards_->end_microbatch();
  }
}

void ModelCore::after_step() {
  if (!partitioned()) {
    return;
  }
  run_all(std::exchange(first_step_hooks_, {}));
}

void ModelCore::run_all(Hooks hooks) {
  for (const auto& hook : hooks) {
    if (*hook != nullptr) {
      (*hook)();
    }
  }
}

void ModelCore::average_gradients() {
  if (partitioned()) {
    context(); // throws after shutdown
    gradients_->average_rest();
  }
}

void ModelCore::share_optimizer_state(
    const std::shared_ptr<const data_parallel::ParameterSet>& of) {
  for (const auto& known : shared_states_) {
    if (known.lock() == of) {
      return;
    }
  }
  shared_states_.push_back(of);
  if (partitioned()) {
    average_gradients();
    apply_shared_states();
  }
}

void ModelCore::apply_shared_states() {
  data_parallel::ParameterSet all;
  for (const auto& state : shared_states_) {
    if (const auto parameters = state.lock()) {
      all.insert(parameters->begin(), parameters->end());
    }
  }
  gradients_->share_state(all);
}

ModelCore::WaitingHook ModelCore::on_partition(Hook hook) {
  if (partitioned()) {
    hook();
    return {};
  }
  return partition_hooks_.emplace_back(std::make_shared<Hook>(std::move(hook)));
}

} // namespace tessera::model
