#include "tessera/train/local_runner.h"

#include <torch/csrc/autograd/autograd.h>

#include "tessera/autograd/weight_gradient.h"
#include "tessera/base/error.h"
#include "tessera/diagnostics/activity.h"
#include "tessera/offload/offloader.h"
#include "tessera/random/operators.h"
#include "tessera/runtime/error_text.h"
#include "tessera/runtime/stream_seed.h"
#include "tessera/tensor/random_state.h"

namespace tessera::train {

namespace {

/// Restores the script's stream at its end, unless the script is to go on from where it is then.
class RestoredRandomState {
 public:
  RestoredRandomState() : state_(RandomState::capture()) {}
  void keep_current() {
    state_ = RandomState::capture();
  }
  ~RestoredRandomState() {
    state_.restore();
  }
  RestoredRandomState(const RestoredRandomState&) = delete;
  RestoredRandomState& operator=(const RestoredRandomState&) = delete;

 private:
  RandomState state_;
};

} // namespace

namespace {

/// The step, told to the keeper of what regions keep; nullptr: there is none.
class KeeperStep {
 public:
  KeeperStep(recompute::Keeper* keeper, std::uint64_t kind) : keeper_(keeper) {
    if (keeper_ != nullptr) {
      keeper_->step_begins(kind);
    }
  }
  ~KeeperStep() {
    if (keeper_ != nullptr) {
      keeper_->step_ended();
    }
  }
  KeeperStep(const KeeperStep&) = delete;
  KeeperStep& operator=(const KeeperStep&) = delete;

 private:
  recompute::Keeper* keeper_;
};

} // namespace

std::vector<c10::IValue> LocalRunner::run(const Work& work) {
  const bool one_stream = continues_script_stream(context_, work.call.microbatches);
  RestoredRandomState script;
  const WeightGradientScope in_place;
  const std::hash<std::string> hash;
  const KeeperStep step(
      context_.offloader.get(), runtime::mix(hash(work.call.function), hash(work.models)));
  std::vector<c10::IValue> results;
  for (int i = 0; i < work.call.microbatches; ++i) {
    if (!one_stream) { // the streams that a server would use
      RandomState::seeded(
          runtime::stream_seed(random_seed(context_), work.draws, runtime::step_function_id(i)))
          .restore();
    }
    results.push_back(run_microbatch(work, i));
  }
  if (one_stream) {
    script.keep_current();
  }
  return results;
}

c10::IValue LocalRunner::run_microbatch(const Work& work, int microbatch) {
  diagnostics::activity::runs(work.step, "", microbatch, false);
  event_ = {};
  event_.name = "step function";
  event_.category = "forward";
  event_.microbatch = microbatch;
  event_.step = static_cast<int>(work.step);
  event_.start_us = context_.recorder->now_us();
  c10::IValue result;
  const recompute::KeeperScope keeper(context_.offloader.get(), microbatch);
  const bool by_place = context_.random_layout != nullptr && !work.tracing;
  const random::OtherNumbersWatch other_numbers(by_place);
  const random::StreamScope stream(
      by_place ? std::optional(random::Stream{context_.random_layout, work.draws, microbatch})
               : std::nullopt);
  if (context_.offloader != nullptr) {
    context_.offloader->task_begins({microbatch, false});
  }
  try {
    result = work.run(microbatch);
    other_numbers.finish("the step function");
  } catch (...) {
    throw UserError(runtime::error_text(
        std::current_exception(),
        context_.world->rank(),
        str("the step function, microbatch ", microbatch)));
  }
  end_event();
  return result;
}

void LocalRunner::end_event() {
  timeline::Recorder& recorder = *context_.recorder;
  if (recorder.enabled()) {
    event_.end_us = recorder.now_us();
    recorder.add(event_);
    event_.start_us = event_.end_us;
  }
}

void LocalRunner::backward(
    const std::vector<at::Tensor>& tensors,
    const std::vector<at::Tensor>& gradients) {
  diagnostics::activity::turns_backward();
  if (event_.category == "forward") { // what follows the backward is recorded with it
    end_event();
    event_.category = "backward";
  }
  if (const recompute::KeeperScope* scope = recompute::KeeperScope::current()) {
    scope->keeper().task_begins({scope->microbatch(), true});
  }
  const WeightGradientPass in_place(tensors);
  torch::autograd::backward(tensors, gradients);
}

} // namespace tessera::train
