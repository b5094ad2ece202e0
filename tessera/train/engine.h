#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "tessera/plan/plan.h"
#include "tessera/runtime/module_directory.h"
#include "tessera/runtime/order_channel.h"
#include "tessera/runtime/replay/static_mode.h"
#include "tessera/runtime/server.h"
#include "tessera/tracer/trace.h"

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
  /// of the world must come. Throws: ConfigError inside a step, or when the
  /// model has a parameter, buffer or module of another live model, or a tensor
  /// that a destroyed one had divided over pipeline ranks.
  void add(ModelCore& model);
  void remove(ModelCore& model);
  /// The live models in order of construction.
  const std::vector<ModelCore*>& models() const {
    return models_;
  }
  /// Changes whenever a model is made, partitioned or destroyed.
  std::int64_t revision() const {
    return revision_;
  }
  /// With one partition: at once, without a step. Collective over the world.
  void partition_whole(ModelCore& model);
  /// Told when a model was partitioned: its modules are called where they are.
  void serve(ModelCore& model);
  /// Told when a model that is not partitioned is called in a step.
  /// Throws: UserError outside of the tracing pass.
  void note_call(const ModelCore& model);

  /// From `save`: a folder's checkpoints are of one model, since a tag written
  /// twice would be replaced and the newest one be anybody's.
  /// Throws: CheckpointError when another live model saved there.
  void claim_directory(const ModelCore& model, const std::string& directory);

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
  // engine_partition.cpp
  using Run = std::function<c10::IValue(int)>;
  void ensure_partitioned(const StepCall& call, const Run& run);
  void partition_waiting(const StepCall& call, const Run& run);
  void place(const std::vector<ModelCore*>& models, const std::vector<std::string>& plans);
  std::vector<std::string> agree(const std::function<std::vector<std::string>(bool&)>& decide);
  std::vector<tracer::RunTrace> trace(const std::vector<ModelCore*>& models, const Run& run);
  std::vector<tracer::RunTrace>
  trace_on_pipeline(const std::vector<ModelCore*>& models, const StepCall& call, const Run& run);
  void check_own(const ModelCore& model) const;
  std::string modes_of_models() const;

  std::vector<c10::IValue> run_on_server(
      const StepCall& call,
      const std::function<c10::IValue(int)>& run);
  std::vector<c10::IValue> run_alone(int microbatches, const std::function<c10::IValue(int)>& run);
  void agree_on_passes();
  void finish(const std::optional<std::string>& failure);

  std::vector<ModelCore*> models_;
  std::int64_t revision_ = 0;
  int models_made_ = 0;
  // Tensors of destroyed models, each whole on one pipeline rank and empty on the
  // others.
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> divided_;
  // By type of step function: numbers of models that its trace did not call.
  std::map<std::string, std::set<int>> passed_over_;
  std::map<std::string, const ModelCore*> directories_; // of checkpoints
  std::set<const ModelCore*> called_; // in the tracing pass that runs
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
