#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include "tessera/data_parallel/gradient_reducer.h"
#include "tessera/graph/model_graph.h"
#include "tessera/nn/replace/replace.h"
#include "tessera/plan/plan.h"
#include "tessera/runtime/module_table.h"
#include "tessera/runtime/plain_backward.h"
#include "tessera/train/engine.h"
#include "tessera/train/parameter_function.h"
#include "tessera/train/session.h"
#include "tessera/train/state_layout.h"

namespace tessera {

/// How a model is wrapped. Names and defaults follow the library's
/// documentation of `DistributedModel`.
struct ModelOptions {
  /// Gradients travel while the backward runs, not at the end of the step.
  bool overlapping_allreduce = true;
  /// Steps whose gradients add up before data-parallel ranks average them.
  int backward_passes_per_step = 1;
  /// Divide gradients by the number of microbatches; false: their sum.
  bool average_grads_across_microbatches = true;
  /// Units: MiB.
  double bucket_cap_mb = 25;
  /// Training steps begin with the buffers of the first data-parallel rank.
  bool broadcast_buffers = true;
  /// Tells the models of a process apart in messages and timelines; empty: the
  /// name of the class.
  std::string name = {};
};

namespace train {

struct Decision;

/// DistributedModel without its module's type.
class ModelCore {
 public:
  /// From here to its destructor the model is one of the process's StepEngine.
  ModelCore(std::shared_ptr<torch::nn::Module> root, ModelOptions options);
  ~ModelCore();
  ModelCore(const ModelCore&) = delete;
  ModelCore& operator=(const ModelCore&) = delete;

  bool partitioned() const {
    return table_ != nullptr;
  }
  /// Throws: ConfigError before the model is partitioned.
  const plans::Plan& plan() const;
  const runtime::ModuleTable& table() const;
  /// What the partition was decided from, on rank 0; else nullptr.
  const std::shared_ptr<const Decision>& decision() const {
    return decision_;
  }
  const std::shared_ptr<torch::nn::Module>& root() const {
    return root_;
  }
  /// As given in ModelOptions, or the class of the model that the script made.
  const std::string& name() const {
    return name_;
  }
  /// The name, made different from those of models that were there before.
  const std::string& label() const {
    return label_;
  }
  /// Of the models of this process, from 1; never given again.
  int number() const {
    return number_;
  }
  /// Which modules tensor parallelism replaced, and why others stayed.
  const nn::Replacements& replacements() const {
    return replacements_;
  }
  /// Throws: ConfigError before the model is partitioned.
  const StateLayout& state_layout() const;
  /// What `over_parameters` made for this model.
  ParameterFunctions& parameter_functions() {
    return parameter_functions_;
  }

  // From the StepEngine:
  void enter(int number, const std::string& label);
  /// The model's plan, on rank 0; `traced` is what a run showed of it, nothing:
  /// it is described. Not collective. Throws: PlanError.
  plans::Plan decide(std::optional<graph::ModelGraph> traced);
  /// Gives every rank its part. Collective over the world.
  void place(plans::Plan plan);
  /// Applies a state that was loaded before the partition, and runs the hooks
  /// that wait for it. In every step; collective over the world.
  void complete_partition();
  /// Collective over the data-parallel ranks. So is finish_step.
  void begin_step(int microbatches);
  bool has_reducers() const {
    return !reducers_.empty();
  }
  /// Whether gradients of several steps add up before they are averaged.
  bool counts_passes() const {
    return has_reducers() && options_.backward_passes_per_step > 1;
  }
  /// Whether this step has added to a gradient on this rank.
  bool had_backward() const;
  /// This step has added to a gradient on some rank of the world.
  void expect_backward();
  /// What is wrong when a parameter has a sparse gradient, else "".
  std::string sparse_gradient() const;
  /// Averages the gradients. `failure`: this rank's step failed.
  /// Throws: UserError when any data-parallel rank's step failed.
  void finish_step(const std::optional<std::string>& failure);
  void after_step();

  void backward(const std::vector<at::Tensor>& tensors, const std::vector<at::Tensor>& gradients);

  /// Makes every gradient the average over replicas, where a backward outside
  /// of a step or a step that did not average has added to one on any rank; else
  /// one agreement of two bytes. Called by optimizers before they use gradients.
  /// Collective over the DP_GROUP, with tensor parallelism over the world;
  /// nothing happens with one replica.
  /// Throws: UserError on all those ranks for a distributed parameter, naming it
  /// and the rank; on every rank of the DP_GROUP for a sparse gradient.
  void average_gradients();

  /// Throws: UserError when a call would leave the step although the model is
  /// on several ranks.
  void check_call() const;

  /// Every parameter of the model once, whoever owns it.
  std::vector<at::Tensor> all_parameters() const;

  /// Every parameter and buffer under every name it has.
  NamedTensors all_tensors() const;
  /// Whether any has no memory yet.
  bool has_delayed() const;

  /// Tensors that this rank owns, each once, under its first path.
  NamedTensors local_parameters() const;
  NamedTensors local_buffers() const;

  TensorMap local_state_dict() const;
  /// Every rank of this replica gives its part; all (or only the first) get the
  /// whole on the host, as a single process would have it. Collective over the
  /// replica.
  TensorMap state_dict(bool only_first);
  /// Takes effect at once, or after the partition when there is none yet.
  void load_state_dict(TensorMap state, bool strict);

  using Hook = std::function<void()>;
  void on_partition(Hook hook);
  void on_first_step(Hook hook);

  /// Of the process, as StepEngine counts.
  std::int64_t step_number() const;
  void set_step_number(std::int64_t step);

 private:
  void replace_modules();
  void take_over_weights();
  void make_reducers();
  void refuse_distributed(const at::Tensor& flags, const std::string& parameter);
  void apply_plan(plans::Plan plan);
  void apply_state(const TensorMap& state, bool strict);
  void broadcast_from_first(const NamedTensors& tensors);

  // Not owned: a model may outlive `shutdown`.
  std::weak_ptr<StepEngine> engine_;
  std::shared_ptr<torch::nn::Module> root_;
  std::string name_;
  std::string label_;
  int number_ = 0;
  ModelOptions options_;
  nn::Replacements replacements_;
  std::unique_ptr<StateLayout> layout_;
  std::shared_ptr<const Decision> decision_;
  std::optional<plans::Plan> plan_;
  ParameterFunctions parameter_functions_{*this};
  std::unique_ptr<runtime::ModuleTable> table_;
  // Groups of this model's own, with the world they belong to: reducers whose
  // buckets leave during a backward must not share a group, on which all ranks
  // would have to start them in one order.
  comm::WorldPtr world_;
  std::vector<comm::ProcessGroupPtr> own_groups_;
  std::unique_ptr<runtime::PlainBackwardGuard> plain_backward_; // of what this rank owns
  // Over the DP_GROUP, and over the RDP_GROUP for distributed parameters.
  std::vector<std::unique_ptr<runtime::GradientReducer>> reducers_;
  std::vector<Hook> partition_hooks_;
  std::vector<Hook> first_step_hooks_; // empty after the first step
  std::optional<std::pair<TensorMap, bool>> deferred_state_;
  int passes_ = 0; // steps since gradients were last averaged
  double scale_ = 1; // of every gradient of the running step
};

} // namespace train
} // namespace tessera
