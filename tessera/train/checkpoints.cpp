#include "tessera/train/checkpoints.h"

#include "tessera/base/error.h"
#include "tessera/checkpoint/directory.h"
#include "tessera/checkpoint/distributed.h"
#include "tessera/context/agreement.h"
#include "tessera/diagnostics/activity.h"
#include "tessera/model/model_core.h"
#include "tessera/runtime/error_text.h"
#include "tessera/train/engine.h"
#include "tessera/train/session.h"

namespace tessera {

namespace {

using model::ModelCore;

/// What this rank is seen to do meanwhile.
class Doing {
 public:
  Doing(const train::StepEngine& engine, const std::string& what) : engine_(engine) {
    diagnostics::activity::script(engine_.step_number(), what);
  }
  ~Doing() {
    diagnostics::activity::script(engine_.step_number());
  }
  Doing(const Doing&) = delete;
  Doing& operator=(const Doing&) = delete;

 private:
  const train::StepEngine& engine_;
};

// A parameter of another model would be missing in both models' checkpoints.
void check_belongs(const ModelCore& model, const DistributedOptimizer& optimizer) {
  const ModelCore& of = optimizer.model();
  if (&of != &model) {
    throw CheckpointError(
        str("the optimizer given has the parameters of the model '",
            of.label(),
            "', the model given is '",
            model.label(),
            "'"));
  }
}

checkpoint::Subject subject_of(const ModelCore& model, DistributedOptimizer& optimizer) {
  optimizer.prepare();
  return {
      model.name(),
      model.plan().partition,
      &model.state_layout(),
      optimizer.updated_tensors(),
      model.local_buffers(),
      &optimizer.inner(),
      model.shards() == nullptr ? nullptr : &model.shards()->parameters()};
}

void apply(
    ModelCore& model,
    DistributedOptimizer& optimizer,
    const checkpoint::Checkpoint& from,
    bool with_optimizer) {
  const checkpoint::Subject subject = subject_of(model, optimizer);
  checkpoint::load_model(subject, from);
  optimizer.refresh_parameters();
  if (with_optimizer) {
    checkpoint::load_optimizer(subject, from);
  }
  checkpoint::load_random_state(model.context(), from);
}

} // namespace

bool checkpoint_exists(const std::string& directory) {
  return checkpoint::read_newest(directory).has_value();
}

Saved save(
    const Model& given,
    DistributedOptimizer& optimizer,
    const std::string& directory,
    const std::string& tag,
    const SaveOptions& options) {
  const ModelCore& model = *given.core();
  const train::StepEngine& engine = train::engine();
  check_belongs(model, optimizer);
  engine.model_set()->claim_directory(model, directory);
  const Doing doing(engine, str("saving checkpoint '", tag, "'"));
  return checkpoint::save(
      engine.context(),
      subject_of(model, optimizer),
      engine.step_number(),
      directory,
      tag,
      options);
}

std::optional<Loaded> load(
    const Model& given,
    DistributedOptimizer& optimizer,
    const std::string& directory,
    const LoadOptions& options) {
  ModelCore* const model = given.core().get();
  train::StepEngine& engine = train::engine();
  check_belongs(*model, optimizer);
  const Doing doing(engine, str("loading a checkpoint of '", directory, "'"));
  auto opened = checkpoint::open(engine.context(), directory, options);
  if (!opened) {
    return std::nullopt;
  }
  engine.set_step_number(opened->steps);
  model->on_partition([model, &optimizer, from = opened->from, with_optimizer = options.optimizer] {
    const Context& context = model->context();
    std::optional<std::string> error;
    if (model->shards() != nullptr) {
      model->shards()->before_writing();
    }
    try {
      apply(*model, optimizer, *from, with_optimizer);
    } catch (...) {
      error =
          str("rank ", context.world->rank(), ": ", runtime::message_of(std::current_exception()));
    }
    if (model->shards() != nullptr) {
      model->shards()->after_writing();
    }
    throw_first_problem<CheckpointError>(*context.world, context.group(Group::kWorld), error);
  });
  return opened->loaded;
}

} // namespace tessera
