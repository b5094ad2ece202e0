#include "tessera/train/server_runner.h"

#include <optional>

#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>

#include "tessera/offload/offloader.h"
#include "tessera/plan/from_config.h"
#include "tessera/tensor/value.h"
#include "tessera/train/step_failure.h"

namespace tessera::train {

ServerRunner::ServerRunner(Context& context)
    : context_(context), directory_(context.group(Group::kPP).rank()) {
  const Context& s = context_;
  schedule_.choose(plans::make_schedule(plans::plan_from_config(s.config, s.world->size())));
  if (s.order_transport != nullptr) {
    order_ = std::make_unique<runtime::OrderChannel>(s.group(s.order_group), *s.order_transport);
  }
  runtime::ServerContext around;
  around.modules = &directory_;
  around.transport = s.transport.get();
  around.pp_ranks = s.group(Group::kPP).ranks();
  around.schedule = &schedule_;
  around.order = order_.get();
  around.recorder = s.recorder.get();
  around.keeper = s.offloader.get();
  around.timeout = s.world->options().timeout;
  around.seed = random_seed(s);
  around.rank = s.world->rank();
  around.reproducible = s.config.reproducible;
  around.failed = abandon_collectives;
  server_ = std::make_unique<runtime::Server>(std::move(around));
  if (s.config.static_mode) {
    make_static_mode();
  }
}

void ServerRunner::make_static_mode() {
  const Context& s = context_;
  runtime::StaticMode::Context around;
  around.modules = &directory_;
  around.world = s.world.get();
  around.all = &s.group(Group::kWorld);
  around.pipeline = &s.group(Group::kPP);
  around.ordered = order_ != nullptr ? &s.group(s.order_group) : nullptr;
  around.rank = s.world->rank();
  static_mode_ = std::make_unique<runtime::StaticMode>(
      runtime::StaticMode::Options{
          s.config.static_mode_steps, s.config.fast_mode, s.config.reproducible},
      std::move(around));
}

void ServerRunner::add(const model::ModelCore& model) {
  directory_.add(model.table(), model.label());
}

void ServerRunner::remove(const model::ModelCore& model) {
  directory_.remove(model.table());
}

void ServerRunner::run_one_at_a_time() {
  plans::Plan plan = plans::plan_from_config(context_.config, context_.world->size());
  plans::run_one_at_a_time(plan);
  schedule_.choose(plans::make_schedule(plan));
}

void ServerRunner::refuse_waiting(const model::ModelCore& model) {
  directory_.refuse_waiting(*model.root(), model.label());
}

void ServerRunner::admit_waiting() {
  directory_.admit_waiting();
}

void ServerRunner::check_not_waiting(const model::ModelCore& model) const {
  directory_.check_not_waiting(*model.root());
}

namespace {

/// Inference tensors have no version, by which a module on another rank tells that it changed its
/// input, so within a step of several ranks inference mode means no more than no gradients.
class OutOfInferenceMode {
 public:
  OutOfInferenceMode() = default;

 private:
  c10::InferenceMode off_{false};
  at::NoGradGuard no_grad_;
};

} // namespace

std::vector<c10::IValue> ServerRunner::run(const Work& given) {
  std::optional<OutOfInferenceMode> normal;
  if (c10::InferenceMode::is_enabled()) {
    normal.emplace();
  }
  runtime::StepWork work;
  work.step = given.step;
  work.draws = given.draws;
  work.serial = ++steps_run_;
  work.microbatches = given.call.microbatches;
  work.run = given.run;
  work.agreed = pack(given.settings);
  const comm::ProcessGroup& pipeline = context_.group(Group::kPP);
  if (pipeline.rank() != 0) {
    work.check_agreed = [&](const c10::IValue& of_leader) {
      const std::string text = optim::difference(
          given.settings,
          context_.world->rank(),
          unpack<optim::Settings>(of_leader),
          pipeline.ranks().front());
      return text.empty() ? text : tessera::str("in step ", given.step, " ", text);
    };
  }
  if (!given.tracing) {
    work.random_layout = context_.random_layout;
    const bool gradients = at::GradMode::is_enabled();
    const std::hash<std::string> hash;
    work.kind = runtime::mix(hash(given.call.function), hash(given.models) + (gradients ? 1 : 0));
    work.script_stream = continues_script_stream(context_, given.call.microbatches);
    if (static_mode_ != nullptr && given.call.static_mode) {
      static_mode_->begin({given.call.function, gradients, given.models}, work);
    }
  }
  return server_->run_step(work);
}

void ServerRunner::backward(
    const std::vector<at::Tensor>& tensors,
    const std::vector<at::Tensor>& gradients) {
  server_->backward(tensors, gradients);
}

void ServerRunner::completed(const StepCall& call, double seconds) {
  if (static_mode_ != nullptr && call.static_mode) {
    static_mode_->completed(seconds);
  }
}

} // namespace tessera::train
