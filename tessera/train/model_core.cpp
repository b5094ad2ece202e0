#include "tessera/train/model_core.h"

#include "tessera/base/error.h"

namespace tessera::train {

ModelCore::ModelCore(std::shared_ptr<torch::nn::Module> root, ModelOptions options)
    : root_(std::move(root)),
      name_(options.name.empty() ? nn::type_name(*root_) : options.name),
      options_(std::move(options)) {
  Session& s = session();
  if (options_.backward_passes_per_step < 1) {
    throw ConfigError(tessera::str(
        "backward_passes_per_step is ", options_.backward_passes_per_step, "; write 1 or more"));
  }
  if (options_.bucket_cap_mb <= 0) {
    throw ConfigError(
        tessera::str("bucket_cap_mb is ", options_.bucket_cap_mb, "; write more than 0"));
  }
  replace_modules();
  s.engine->add(*this);
  engine_ = s.engine;
  if (s.config.pipeline_parallel_degree == 1) {
    try {
      s.engine->partition_whole(*this); // nothing has to be known of a run
    } catch (...) {
      s.engine->remove(*this);
      throw;
    }
  }
}

void ModelCore::enter(int number, const std::string& label) {
  number_ = number;
  label_ = label;
}

ModelCore::~ModelCore() {
  if (const auto engine = engine_.lock()) {
    engine->remove(*this);
  }
}

const plans::Plan& ModelCore::plan() const {
  if (!plan_) {
    throw ConfigError(tessera::str(
        "the model '",
        label_,
        "' is not partitioned yet: that happens in the first step that calls it"));
  }
  return *plan_;
}

const runtime::ModuleTable& ModelCore::table() const {
  plan();
  return *table_;
}

const StateLayout& ModelCore::state_layout() const {
  plan();
  return *layout_;
}

void ModelCore::begin_step(int microbatches) {
  scale_ = options_.average_grads_across_microbatches ? 1.0 / microbatches : 1;
  if (!partitioned()) {
    return;
  }
  if (options_.broadcast_buffers && root_->is_training()) {
    broadcast_from_first(local_buffers());
  }
  plain_backward_->find_trainable();
  for (const auto& reducer : reducers_) {
    reducer->begin(passes_ + 1 >= options_.backward_passes_per_step);
  }
}

void ModelCore::after_step() {
  if (!partitioned()) {
    return;
  }
  for (const Hook& hook : std::exchange(first_step_hooks_, {})) {
    hook();
  }
}

void ModelCore::backward(
    const std::vector<at::Tensor>& tensors,
    const std::vector<at::Tensor>& gradients) {
  session().engine->backward(tensors, gradients, scale_);
}

void ModelCore::check_call() const {
  // One of the tracing pass's runs has no interceptor: it only warms the machine up.
  if (session().config.pipeline_parallel_degree > 1 && nn::current_interceptor() == nullptr &&
      !session().tracing) {
    throw UserError(
        "the model was called outside a step function; with "
        "pipeline_parallel_degree > 1 its parts are on several ranks, so call "
        "it inside tessera::step");
  }
  if (!partitioned()) {
    session().engine->note_call(*this);
  }
}

NamedTensors ModelCore::local_parameters() const {
  return table().local_parameters();
}

NamedTensors ModelCore::local_buffers() const {
  return table().local_buffers();
}

void ModelCore::on_partition(Hook hook) {
  if (partitioned()) {
    hook();
  } else {
    partition_hooks_.push_back(std::move(hook));
  }
}

std::int64_t ModelCore::step_number() const {
  return session().engine->step_number();
}

void ModelCore::set_step_number(std::int64_t step) {
  session().engine->set_step_number(step);
}

void ModelCore::on_first_step(Hook hook) {
  first_step_hooks_.push_back(std::move(hook));
}

} // namespace tessera::train
