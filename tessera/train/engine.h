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
#include <torch/nn/module.h>

#include "tessera/context/context.h"
#include "tessera/model/model_set.h"
#include "tessera/model/options.h"
#include "tessera/optim/settings.h"
#include "tessera/tracer/member_changes.h"
#include "tessera/tracer/trace.h"
#include "tessera/train/sample_buffers.h"
#include "tessera/train/step_call.h"
#include "tessera/train/step_numbers.h"

namespace tessera::train {

using model::ModelCore;

class StepRunner;

/// Runs the steps of this process, whichever models they call. One per process: it knows the live
/// models, which own their parts, and has the runner that serves this pipeline rank.
/// Threads: step thread only; `backward` and `check_call` also from the step function.
class StepEngine : public std::enable_shared_from_this<StepEngine> {
 public:
  /// `context` must outlive this.
  explicit StepEngine(Context& context);
  ~StepEngine();
  StepEngine(const StepEngine&) = delete;
  StepEngine& operator=(const StepEngine&) = delete;

  Context& context() const {
    return context_;
  }
  const std::shared_ptr<model::ModelSet>& model_set() const {
    return models_;
  }

  /// A model that is one of the process's until its last owner ends; with one pipeline rank it is
  /// partitioned at once. Collective over the world.
  /// Throws: ConfigError inside a step, and as ModelCore and ModelSet::add.
  std::shared_ptr<ModelCore> make_model(
      std::shared_ptr<torch::nn::Module> module,
      ModelOptions options);

  /// Makes the model an ordinary one, whole on every rank, and forgets it. Collective over the
  /// world. Throws: UserError in a step; as ModelCore::check_may_be_released.
  void release(ModelCore& model);

  /// Before a call of the model. Not collective.
  /// Throws: UserError when the call would leave the step although the model is on several ranks,
  /// or when the model is not partitioned and the tracing pass is over.
  void check_call(const ModelCore& model);

  /// Runs one step; `run` is the user's function on one microbatch. Models that are not partitioned
  /// yet are partitioned before.
  /// Collective over the world.
  /// Throws: ConfigError without a live model; UserError on every rank when user code failed on
  /// any.
  std::vector<c10::IValue> run_step(const StepCall& call, const StepFunction& run);

  /// From the step function: backward of `tensors` through whatever models they came from. A pass
  /// of `asked` even if it reaches no parameter of any model. `scale`: what gradients are
  /// multiplied by. Throws: UserError outside a step, or for tensors without a gradient.
  void backward(
      const ModelCore& asked,
      const std::vector<at::Tensor>& tensors,
      const std::vector<at::Tensor>& gradients,
      double scale);

  /// Returns whether the step function runs in the tracing pass of a first step.
  bool tracing() const {
    return tracing_;
  }
  std::int64_t step_number() const {
    return step_;
  }
  /// Returns the number of steps that learnt, which a checkpoint keeps.
  std::int64_t steps_learnt() const {
    return numbers_.learnt();
  }
  /// For a resumed run: steps and random streams go on where they were.
  void set_steps_learnt(std::int64_t steps) {
    step_ = steps;
    numbers_.set_learnt(steps);
  }

 private:
  const std::vector<ModelCore*>& models() const {
    return models_->models();
  }
  StepRunner& runner();
  void remove(ModelCore& model);

  // engine_partition.cpp
  void partition_whole(ModelCore& model);
  void note_call(const ModelCore& model);
  void ensure_partitioned(const StepCall& call, const StepFunction& run);
  void partition_waiting(const StepCall& call, const StepFunction& run);
  void describe_and_place(const std::vector<ModelCore*>& models, const std::set<int>& passed_over);
  void trace_and_place(
      const std::vector<ModelCore*>& models,
      const StepCall& call,
      const StepFunction& run,
      bool served);
  void warn_of_shared_buffers(const tracer::RunTrace& trace) const;
  bool microbatches_share_state(const std::vector<tracer::RunTrace>& traces) const;
  void place(const std::vector<ModelCore*>& models, const std::vector<std::string>& plans);
  std::vector<std::string> agree(const std::function<std::vector<std::string>(bool&)>& decide);
  std::vector<tracer::RunTrace> trace(
      const std::vector<ModelCore*>& models,
      const StepFunction& run);
  std::vector<tracer::RunTrace> see_operations(
      const std::vector<ModelCore*>& models,
      const StepFunction& run);
  std::vector<tracer::RunTrace> trace_on_pipeline(
      const std::vector<ModelCore*>& models,
      const StepCall& call,
      const StepFunction& run);

  bool learns(const StepCall& call) const;
  std::string training_modes() const;
  std::string modes_of_models() const;
  // engine_watches.cpp
  /// Before the first step of a kind whose microbatches take turns.
  std::optional<tracer::MemberChanges> watch_members(const StepCall& call);
  /// `found`: names of modules. Rank 0 says it.
  void warn_of_shared_members(const std::set<std::string>& found, int microbatches) const;
  /// Before the first step of a kind whose buffers several microbatches or replicas change.
  std::optional<SampleBuffers> watch_buffers(const StepCall& call);
  /// `found`: buffers. Rank 0 says it.
  void warn_of_sample_buffers(const std::set<std::string>& found, const StepCall& call) const;
  /// Returns what any rank has found. Collective over the world.
  std::set<std::string> on_any_rank(const std::vector<std::string>& found) const;

  /// Throws: UserError for a step with a backward whose batch is not this replica's.
  void check_rows(const StepCall& call) const;
  void agree_on_passes();
  std::optional<std::string> problem_of_averages() const;
  void finish(const std::optional<std::string>& failure);
  /// Collective over the DP_GROUP where its ranks' differ. Throws: UserError on all of them.
  void check_replicas_alike(const optim::Settings& settings, const std::string& modes) const;
  void warn_of_idle_offloading();
  /// Collective in the first step that has gradients, with checkpoint_attentions.
  void warn_of_idle_attentions();
  void warn_of_unequal_batches(std::int64_t rows);
  void warn_of_sum(const at::Tensor& loss, double scale);

  Context& context_;
  std::shared_ptr<model::ModelSet> models_;
  std::unique_ptr<StepRunner> runner_;
  // By type of step function: numbers of models that its trace did not call.
  std::map<std::string, std::set<int>> passed_over_;
  std::set<const ModelCore*> called_; // in the tracing pass that runs
  std::set<std::string> known_state_; // on rank 0: modules that a trace saw keep something
  std::set<std::string> watched_; // kinds of steps
  std::set<std::string> watched_buffers_; // the same
  std::int64_t step_ = 0;
  StepNumbers numbers_;
  bool& in_step_ = models_->running().inside;
  std::set<const ModelCore*> asked_; // for a backward in this step
  bool& tracing_ = models_->running().tracing;
  bool warned_of_sum_ = false;
  bool warned_of_rows_ = false;
  bool warned_of_offloading_ = false;
  bool looked_for_attentions_ = false;
};

} // namespace tessera::train
