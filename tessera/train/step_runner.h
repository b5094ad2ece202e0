#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "tessera/context/context.h"
#include "tessera/model/model_core.h"
#include "tessera/optim/settings.h"
#include "tessera/train/step_call.h"

namespace tessera::train {

/// Runs the microbatches of the process's steps: on this rank alone, or over the ranks of a
/// pipeline. Threads: step thread only, `backward` and `check_not_waiting` also from the step
/// function.
class StepRunner {
 public:
  struct Work {
    StepCall call;
    std::int64_t step = 0;
    std::int64_t draws = 0; // StepNumbers::draws
    /// Which models there are, in which modes, with which parameters frozen: a recorded step holds
    /// for these.
    std::string models;
    const StepFunction& run;
    /// What optimizers have to have alike on all ranks of the pipeline.
    optim::Settings settings;
    /// A pass that only looks at the model: it is neither recorded nor repeated.
    bool tracing = false;
  };

  virtual ~StepRunner() = default;

  // Told of the models that are partitioned.
  virtual void add(const model::ModelCore& /*model*/) {}
  virtual void remove(const model::ModelCore& /*model*/) {}
  /// From now on microbatches run one at a time, each to its end. Not collective; every rank of the
  /// pipeline is told between the same steps.
  virtual void run_one_at_a_time() {}
  /// Until `admit_waiting`, calls of this model's modules are refused: it is not partitioned.
  virtual void refuse_waiting(const model::ModelCore& /*model*/) {}
  virtual void admit_waiting() {}
  /// Throws: UserError for a model whose calls are refused.
  virtual void check_not_waiting(const model::ModelCore& /*model*/) const {}

  /// Returns what the step function returned for each microbatch. Collective over the pipeline.
  /// Throws: UserError when user code failed.
  virtual std::vector<c10::IValue> run(const Work& work) = 0;
  /// Backward of `tensors` with these gradients.
  virtual void backward(
      const std::vector<at::Tensor>& tensors,
      const std::vector<at::Tensor>& gradients) = 0;
  /// The step went well on all ranks and took `seconds` on this one. Collective over the world.
  virtual void completed(const StepCall& /*call*/, double /*seconds*/) {}
};

/// Ranks draw different random numbers where their samples are different.
std::uint64_t random_seed(const Context& context);

/// Returns whether a step draws what a single process would draw: with several microbatches or
/// replicas there is no order in which one stream could serve all.
bool continues_script_stream(const Context& context, int microbatches);

} // namespace tessera::train
