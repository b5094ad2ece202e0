#include "tessera/train/model_core.h"

#include <chrono>

#include <torch/csrc/autograd/autograd.h>

#include "tessera/base/error.h"
#include "tessera/comm/activity.h"
#include "tessera/runtime/error_text.h"
#include "tessera/runtime/random_state.h"
#include "tessera/tensor/value.h"
#include "tessera/tensor/weight_gradient.h"
#include "tessera/train/step_failure.h"

namespace tessera::train {

namespace {

class RestoredRandomState {
 public:
  RestoredRandomState() : state_(runtime::RandomState::capture()) {}
  ~RestoredRandomState() {
    state_.restore();
  }
  RestoredRandomState(const RestoredRandomState&) = delete;
  RestoredRandomState& operator=(const RestoredRandomState&) = delete;

 private:
  runtime::RandomState state_;
};

} // namespace

ModelCore::ModelCore(std::shared_ptr<torch::nn::Module> root, ModelOptions options)
    : root_(std::move(root)), name_(nn::type_name(*root_)), options_(options) {
  Session& s = session();
  if (options_.backward_passes_per_step < 1) {
    throw ConfigError(tessera::str(
        "backward_passes_per_step is ", options_.backward_passes_per_step, "; write 1 or more"));
  }
  if (options_.bucket_cap_mb <= 0) {
    throw ConfigError(
        tessera::str("bucket_cap_mb is ", options_.bucket_cap_mb, "; write more than 0"));
  }
  if (!s.model.expired()) {
    throw ConfigError(
        "a second DistributedModel was made; a script has one, put several "
        "networks into one module");
  }
  replace_modules();
  if (s.config.pipeline_parallel_degree == 1) {
    ensure_partitioned({}); // nothing has to be known of a run
  }
}

const plan::Plan& ModelCore::plan() const {
  if (!plan_) {
    throw ConfigError("the model is not partitioned yet: that happens in the first step");
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

std::vector<c10::IValue> ModelCore::run_step(
    const StepCall& call,
    const std::function<c10::IValue(int)>& run) {
  const int microbatches = call.microbatches;
  ensure_partitioned([&] { run(0); });
  scale_ = options_.average_grads_across_microbatches ? 1.0 / microbatches : 1;
  if (options_.broadcast_buffers && root_->is_training()) {
    broadcast_from_first(local_buffers());
  }
  for (const auto& reducer : reducers_) {
    reducer->begin(passes_ + 1 >= options_.backward_passes_per_step);
  }
  std::vector<c10::IValue> results;
  std::optional<std::string> failure;
  const auto started = std::chrono::steady_clock::now();
  in_step_ = true;
  try {
    if (server_ != nullptr) {
      results = run_on_server(call, run);
    } else {
      results = run_alone(microbatches, run);
    }
  } catch (const UserError& error) {
    failure = error.what();
    abandon_collectives(*failure);
  } catch (...) {
    in_step_ = false;
    throw;
  }
  in_step_ = false;
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - started;
  ++step_;
  comm::activity::script(step_);
  if (!reducers_.empty()) {
    // A step that failed leaves gradients that only zero_grad mends.
    const int passes = std::exchange(passes_, 0);
    bool backward = false;
    const bool averages =
        at::GradMode::is_enabled() && passes + 1 >= options_.backward_passes_per_step;
    const timeline::Span span(
        *session().recorder,
        averages ? "gradient averaging" : "agreement of replicas",
        "comm",
        static_cast<int>(step_ - 1));
    try {
      backward = finish_reducers(failure);
    } catch (const UserError&) {
      recover_collectives(); // every rank of the DP_GROUP comes here
      throw;
    }
    passes_ = backward ? (passes + 1) % options_.backward_passes_per_step : passes;
  } else if (failure) {
    throw UserError(*failure);
  }
  if (static_mode_ != nullptr && call.static_mode) {
    static_mode_->completed(seconds.count());
  }
  for (const Hook& hook : std::exchange(first_step_hooks_, {})) {
    hook();
  }
  return results;
}

std::vector<c10::IValue> ModelCore::run_on_server(
    const StepCall& call,
    const std::function<c10::IValue(int)>& run) {
  runtime::StepWork work;
  work.step = step_;
  work.serial = ++session().steps_run;
  work.microbatches = call.microbatches;
  work.run = run;
  if (static_mode_ != nullptr && call.static_mode) {
    static_mode_->begin({call.function, at::GradMode::is_enabled(), root_->is_training()}, work);
  }
  return server_->run_step(work);
}

// Ranks draw different random numbers where their samples are different.
std::uint64_t ModelCore::seed() const {
  return runtime::mix(static_cast<std::uint64_t>(session().config.seed), data_rank());
}

// One partition: each microbatch runs to its end on the calling thread.
std::vector<c10::IValue> ModelCore::run_alone(
    int microbatches,
    const std::function<c10::IValue(int)>& run) {
  std::vector<c10::IValue> results;
  // The streams that a server would use: a resumed run draws the same numbers.
  const RestoredRandomState script;
  const WeightGradientScope in_place;
  timeline::Recorder& recorder = *session().recorder;
  for (int i = 0; i < microbatches; ++i) {
    comm::activity::runs(step_, "", i, false);
    timeline::Event event;
    event.start_us = recorder.now_us();
    runtime::RandomState::seeded(runtime::stream_seed(seed(), step_, runtime::step_function_id(i)))
        .restore();
    try {
      results.push_back(run(i));
    } catch (...) {
      throw UserError(runtime::error_text(
          std::current_exception(),
          session().world->rank(),
          tessera::str("the step function, microbatch ", i)));
    }
    if (recorder.enabled()) {
      event.end_us = recorder.now_us();
      event.name = "step function";
      event.category = "forward";
      event.microbatch = i;
      event.step = static_cast<int>(step_);
      recorder.add(std::move(event));
    }
  }
  return results;
}

void ModelCore::backward(
    const std::vector<at::Tensor>& tensors,
    const std::vector<at::Tensor>& gradients) {
  if (session().tracing) {
    return; // the tracing pass follows the forward only
  }
  if (!in_step_) {
    throw UserError("model.backward was called outside a step function");
  }
  if (!gradients.empty() && gradients.size() != tensors.size()) {
    throw UserError(tessera::str(
        "model.backward got ", tensors.size(), " tensors and ", gradients.size(), " gradients"));
  }
  std::vector<at::Tensor> scaled;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const bool given = !gradients.empty() && gradients[i].defined();
    if (!given && tensors[i].numel() != 1) {
      throw UserError(tessera::str(
          "model.backward got a tensor of shape ",
          tensors[i].sizes(),
          " without a gradient; reduce it to one number, or give its "
          "gradient"));
    }
    if (!tensors[i].requires_grad()) {
      throw UserError(
          "model.backward got a tensor that needs no gradient; is grad mode "
          "off, or was it detached?");
    }
    scaled.push_back(given ? gradients[i] * scale_ : at::full_like(tensors[i], scale_));
  }
  for (const auto& reducer : reducers_) {
    reducer->expect_backward();
  }
  if (server_ != nullptr) {
    server_->backward(tensors, scaled);
  } else {
    comm::activity::turns_backward();
    const WeightGradientPass in_place(tensors);
    torch::autograd::backward(tensors, scaled);
  }
}

void ModelCore::check_call() const {
  if (session().config.pipeline_parallel_degree > 1 && nn::current_interceptor() == nullptr) {
    throw UserError(
        "the model was called outside a step function; with "
        "pipeline_parallel_degree > 1 its parts are on several ranks, so call "
        "it inside tessera::step");
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

void ModelCore::on_first_step(Hook hook) {
  first_step_hooks_.push_back(std::move(hook));
}

} // namespace tessera::train
