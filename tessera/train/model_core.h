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

#include "tessera/nn/tensor_parallel/replace.h"
#include "tessera/plan/plan.h"
#include "tessera/runtime/gradient_reducer.h"
#include "tessera/runtime/module_table.h"
#include "tessera/runtime/server.h"
#include "tessera/runtime/static_mode.h"
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
};

namespace train {

struct Decision;

/// What a step says of itself.
struct StepCall {
  std::string function; // type of the step function
  bool static_mode = true; // may be repeated as recorded
  int microbatches = 1;
};

/// DistributedModel without its module's type.
class ModelCore {
 public:
  ModelCore(std::shared_ptr<torch::nn::Module> root, ModelOptions options);

  bool partitioned() const {
    return table_ != nullptr;
  }
  /// Throws: ConfigError before the model is partitioned.
  const plan::Plan& plan() const;
  const runtime::ModuleTable& table() const;
  /// What the partition was decided from, on rank 0; else nullptr.
  const std::shared_ptr<const Decision>& decision() const {
    return decision_;
  }
  const std::shared_ptr<torch::nn::Module>& root() const {
    return root_;
  }
  /// Class of the model that the script made.
  const std::string& name() const {
    return name_;
  }
  /// Which modules tensor parallelism replaced, and why others stayed.
  const nn::Replacements& replacements() const {
    return replacements_;
  }
  /// Throws: ConfigError before the model is partitioned.
  const StateLayout& state_layout() const;

  /// Runs one step; `run` is the user's function on one microbatch.
  /// Collective over the world.
  std::vector<c10::IValue> run_step(
      const StepCall& call,
      const std::function<c10::IValue(int)>& run);

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

  std::int64_t step_number() const {
    return step_;
  }
  /// For a resumed run: random streams go on where they were.
  void set_step_number(std::int64_t step) {
    step_ = step;
  }

 private:
  void replace_modules();
  void take_over_weights();
  void make_reducers();
  bool finish_reducers(const std::optional<std::string>& failure);
  void refuse_distributed(const at::Tensor& flags, const std::string& parameter);
  void ensure_partitioned(const std::function<void()>& first_microbatch);
  plan::Plan decide(const std::function<void()>& first_microbatch);
  plan::Plan agree_on_plan(const std::function<void()>& first_microbatch);
  void place(plan::Plan plan);
  void apply_plan(plan::Plan plan);
  void apply_state(const TensorMap& state, bool strict);
  void broadcast_from_first(const NamedTensors& tensors);
  std::uint64_t seed() const;
  std::vector<c10::IValue> run_on_server(
      const StepCall& call,
      const std::function<c10::IValue(int)>& run);
  std::vector<c10::IValue> run_alone(int microbatches, const std::function<c10::IValue(int)>& run);

  std::shared_ptr<torch::nn::Module> root_;
  std::string name_;
  ModelOptions options_;
  nn::Replacements replacements_;
  std::unique_ptr<StateLayout> layout_;
  std::shared_ptr<const Decision> decision_;
  std::optional<plan::Plan> plan_;
  std::unique_ptr<runtime::ModuleTable> table_;
  std::unique_ptr<schedule::Schedule> schedule_;
  std::unique_ptr<runtime::OrderChannel> order_;
  std::unique_ptr<runtime::Server> server_;
  std::unique_ptr<runtime::StaticMode> static_mode_; // null: off, one partition
  // Over the DP_GROUP, and over the RDP_GROUP for distributed parameters.
  std::vector<std::unique_ptr<runtime::GradientReducer>> reducers_;
  std::vector<Hook> partition_hooks_;
  std::vector<Hook> first_step_hooks_; // empty after the first step
  std::optional<std::pair<TensorMap, bool>> deferred_state_;
  std::int64_t step_ = 0;
  int passes_ = 0; // steps since gradients were last averaged
  double scale_ = 1; // of every gradient of the running step
  bool in_step_ = false;
};

} // namespace train
} // namespace tessera
