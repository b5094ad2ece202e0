#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "tessera/plan/plan.h"
#include "tessera/runtime/module_directory.h"
#include "tessera/runtime/server.h"
#include "tessera/runtime/static_mode.h"

namespace tessera::train {

class ModelCore;

/// What a step says of itself.
struct StepCall {
  std::string function; // type of the step function
  bool static_mode = true; // may be repeated as recorded
  int microbatches = 1;
};

/// Runs the steps of this process, whichever models they call. One per process:
/// it owns what serves a pipeline rank (server, schedule, order of tasks,
/// recorded steps) and knows the live models, which own everything else.
///
/// All ranks run the same script, so they make and destroy the same models in
/// the same order; what ranks agree on goes by that order.
/// Threads: step thread only, backward also from the step function.
class StepEngine {
 public:
  StepEngine();
  ~StepEngine();
  StepEngine(const StepEngine&) = delete;
  StepEngine& operator=(const StepEngine&) = delete;

  /// From a model's constructor and destructor. Not collective, but every rank
  /// of the world must come.
  void add(ModelCore& model);
  void remove(ModelCore& model);
  /// The live models in order of construction.
  const std::vector<ModelCore*>& models() const {
    return models_;
  }
  /// From now on the modules of this table are found where they are owned; for
  /// the table of a model that was just partitioned.
  void serve(const runtime::ModuleTable& table, const std::string& label);

  /// Runs one step; `run` is the user's function on one microbatch. Models that
  /// are not partitioned yet are partitioned before.
  /// Collective over the world.
  /// Throws: ConfigError without a live model; UserError on every rank when user
  /// code failed on any.
  std::vector<c10::IValue> run_step(
      const StepCall& call,
      const std::function<c10::IValue(int)>& run);

  /// From the step function: backward of `tensors` through whatever models they
  /// came from. `scale`: what gradients are multiplied by.
  /// Throws: UserError outside a step, or for tensors without a gradient.
  void backward(
      const std::vector<at::Tensor>& tensors,
      const std::vector<at::Tensor>& gradients,
      double scale);

  /// Whether a step's function is running, the tracing pass included.
  bool in_step() const {
    return in_step_;
  }
  std::int64_t step_number() const {
    return step_;
  }
  /// For a resumed run: random streams go on where they were.
  void set_step_number(std::int64_t step) {
    step_ = step;
  }

 private:
  void start_server();
  void ensure_partitioned(const std::function<c10::IValue(int)>& run);
  std::vector<c10::IValue> run_on_server(
      const StepCall& call,
      const std::function<c10::IValue(int)>& run);
  std::vector<c10::IValue> run_alone(int microbatches, const std::function<c10::IValue(int)>& run);
  void finish(const std::optional<std::string>& failure);

  std::vector<ModelCore*> models_;
  runtime::ModuleDirectory directory_;
  std::unique_ptr<schedule::Schedule> schedule_;
  std::unique_ptr<runtime::OrderChannel> order_;
  std::unique_ptr<runtime::Server> server_; // null: one partition
  std::unique_ptr<runtime::StaticMode> static_mode_; // null: off, or one partition
  std::int64_t step_ = 0;
  std::int64_t steps_run_ = 0; // equal on all ranks; never goes back
  bool in_step_ = false;
};

} // namespace tessera::train
