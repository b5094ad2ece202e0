#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>

#include "tessera/context/context.h"
#include "tessera/data_parallel/gradient_sync.h"
#include "tessera/graph/model_graph.h"
#include "tessera/model/options.h"
#include "tessera/model/parameter_functions.h"
#include "tessera/nn/replace/replace.h"
#include "tessera/operations/capture/model_operations.h"
#include "tessera/plan/plan.h"
#include "tessera/runtime/module_table.h"
#include "tessera/runtime/plain_backward.h"
#include "tessera/sharding/model_shards.h"
#include "tessera/state/layout.h"

namespace tessera::model {

struct Decision;

/// Modules by their paths in a model.
using NamedModules = std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>>;

/// One model of the process: its modules, its partition, its state and its gradients. It knows
/// neither the steps that call it nor the other models.
///
/// Methods are not collective unless they say otherwise. Threads: step thread only.
class ModelCore {
 public:
  /// Replaces the marked modules. Collective over the TP_GROUP.
  /// Throws: ConfigError for bad options.
  ModelCore(Context& context, std::shared_ptr<torch::nn::Module> root, ModelOptions options);

  /// Throws: ConfigError after `shutdown`, which a model may outlive.
  Context& context() const {
    return in_force(context_);
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
  /// What the keys fp16 and bf16 made of its floating-point parameters and buffers; nullopt: they
  /// are as the script made them.
  std::optional<at::ScalarType> converted_to() const {
    return converted_to_;
  }
  /// From the ModelSet.
  void enter(int number, const std::string& label);

  // The partition (core_partition.cpp).
  bool partitioned() const {
    return table_ != nullptr;
  }
  /// Throws: ConfigError before the model is partitioned, as do the two below.
  const plans::Plan& plan() const;
  const runtime::ModuleTable& table() const;
  const state::StateLayout& state_layout() const;
  /// What the partition was decided from, on rank 0; else nullptr.
  const std::shared_ptr<const Decision>& decision() const {
    return decision_;
  }
  /// Which modules tensor parallelism replaced, and why others stayed.
  const nn::Replacements& replacements() const {
    return replacements_;
  }
  /// The model's plan, on rank 0. `traced`: what a run showed of it; without one the model is
  /// described. `only`: the process has no other model. Throws: PlanError.
  plans::Plan decide(std::optional<graph::ModelGraph> traced, bool only);
  /// Gives this rank its part of the model.
  void place(plans::Plan plan);
  /// Makes ranks that hold the same tensors agree on their values, and prepares the averaging of
  /// gradients. `only`: as above. Collective over the world.
  void join_replicas(bool only);
  /// Runs `act`, which reads or writes the model's values. Before the partition every rank still
  /// holds all modules, so meanwhile this rank has the table and the plan of one that owns them
  /// all. Returns false without running it where tensors have no memory yet. Collective as `act`.
  bool with_values(const std::function<void()>& act);
  /// Before the partition: gives all ranks the values of pp rank 0 of the first replica. They
  /// differ where a script has seeded its ranks differently. Does nothing where tensors have no
  /// memory yet. Collective over the world.
  void agree_on_values() const;
  /// Applies a state that was loaded before the partition, and runs the hooks that wait for it. In
  /// every step; collective over the world.
  void complete_partition();

  /// Whether `release` has run.
  bool released() const {
    return released_;
  }
  /// Throws: ConfigError before the partition, and for a model with distributed modules that the
  /// script has built itself: nobody knows what they would be in one process.
  void check_may_be_released() const;
  /// Makes the model what the script gave: its own modules, with the values of `state`, which is
  /// whole, on this rank. It is no model of several ranks any more. After StepEngine has forgotten
  /// it. Not collective.
  void release(TensorMap state);

  // A step.
  /// Collective over the data-parallel ranks.
  /// Throws: UserError for a parameter that was registered after the partition.
  void begin_step(int microbatches);
  void after_step();
  /// How much this rank's replica counts in the averages of the steps that follow, and whose
  /// buffers they begin with: first ranks in the DP_GROUP and in the RDP_GROUP.
  struct ReplicaPart {
    double weight = 1;
    int first_dp = 0;
    int first_rdp = 0;
  };
  void set_replica_part(const ReplicaPart& part) {
    replica_ = part;
    replica_ends_ = false;
  }
  const ReplicaPart& replica_part() const {
    return replica_;
  }
  /// All replicas count alike again; the next step begins with the buffers of the last that counted
  /// all the same. Not collective.
  void end_replica_part() {
    replica_.weight = 1;
    replica_ends_ = true;
  }
  /// Gives all replicas the buffers of the first one. Collective over the data-parallel ranks.
  void share_buffers();
  /// Does so where the first data-parallel rank does not count, whose buffers a checkpoint holds.
  /// Collective over the data-parallel ranks.
  void share_buffers_of_others() const;
  /// Averages are made by the hook from the partition on, or at once; nullptr: by the library.
  /// Throws: ConfigError where the library does not average buckets itself for every rank.
  void set_comm_hook(data_parallel::CommHook hook);
  /// What every gradient of the running step is multiplied by.
  double gradient_scale() const {
    return scale_;
  }
  /// nullptr before the partition.
  data_parallel::GradientSync* gradients() const {
    return gradients_.get();
  }
  /// Parameters that several ranks hold together; nullptr without sharded data parallelism, and
  /// before the partition.
  sharding::ModelShards* shards() const {
    return shards_.get();
  }
  /// A microbatch of the running step is over.
  void end_microbatch();
  /// GradientSync::average_rest, for optimizers. Nothing happens before the partition.
  void average_gradients();
  /// With shard_optimizer_state: the state of these parameters is shared out over the ranks that
  /// hold them, from the partition on and for as long as `of` lives. Harmless to repeat.
  /// Collective over the world after the partition.
  void share_optimizer_state(const std::shared_ptr<const data_parallel::ParameterSet>& of);

  // Parameters and buffers (core_state.cpp).
  /// Every parameter of the model once, whoever owns it.
  std::vector<at::Tensor> all_parameters() const;
  /// Every parameter and buffer under every name it has.
  NamedTensors all_tensors() const;
  /// Returns whether any has no memory yet.
  bool has_delayed() const;
  /// Tensors that this rank owns, each once, under its first path.
  NamedTensors local_parameters() const {
    return table().local_parameters();
  }
  NamedTensors local_buffers() const {
    return table().local_buffers();
  }
  /// The modules that run on this rank, each once, under its first path: those it owns and those
  /// folded into them.
  NamedModules local_modules() const;
  /// The name of this rank's parameter (buffer), or nullopt when it owns none such.
  std::optional<std::string> name_of_parameter(const at::Tensor& parameter) const;
  std::optional<std::string> name_of_buffer(const at::Tensor& buffer) const;
  /// This rank's parameters whose gradients are averaged over the RDP_GROUP (`scaled_batch`), or
  /// the others, over the DP_GROUP.
  NamedTensors reduced_parameters(bool scaled_batch) const;
  TensorMap local_state_dict() const;
  /// Every rank of this replica gives its part; all (or only the first) get the whole on the host,
  /// as a single process would have it. Collective over the replica.
  TensorMap state_dict(bool only_first) const;
  /// Takes effect at once; or after the partition, where there is none yet and the state is the
  /// part of one rank (`part`), or tensors have no memory. Collective over the world.
  void load_state_dict(TensorMap state, bool strict, bool part = false);

  /// What a call of the model does with partition_mode "operations" and several pipeline ranks;
  /// else nullptr.
  operations::ModelOperations* operations() {
    return operations_.get();
  }

  /// What `over_parameters` made for this model.
  ParameterFunctions& parameter_functions() {
    return parameter_functions_;
  }

  using Hook = std::function<void()>;
  /// A hook that waits; one that is set to nullptr does not run.
  using WaitingHook = std::weak_ptr<Hook>;
  /// Runs `hook` after the partition; at once when that is done, and then nothing waits.
  WaitingHook on_partition(Hook hook);
  WaitingHook on_first_step(Hook hook) {
    return first_step_hooks_.emplace_back(std::make_shared<Hook>(std::move(hook)));
  }

 private:
  void check_no_late_parameter() const;
  void check_options() const;
  void convert();
  void replace_modules();
  void prepare_operations();
  void place_operations();
  void take_over_weights();
  void apply_state(const TensorMap& state, bool strict);
  void broadcast_from(const NamedTensors& tensors, int first_dp, int first_rdp) const;
  void put_originals_back();
  void broadcast_buffers() const;
  void broadcast_from_first(const NamedTensors& tensors) {
    broadcast_from(tensors, 0, 0);
  }
  void apply_shared_states();

  std::weak_ptr<Context> context_;
  std::shared_ptr<torch::nn::Module> root_;
  std::string name_;
  std::string label_;
  int number_ = 0;
  bool released_ = false;
  ModelOptions options_;
  std::optional<at::ScalarType> converted_to_;
  nn::Replacements replacements_;
  std::unique_ptr<state::StateLayout> layout_;
  std::shared_ptr<const Decision> decision_;
  std::optional<plans::Plan> plan_;
  ParameterFunctions parameter_functions_;
  std::unique_ptr<operations::ModelOperations> operations_;
  std::unique_ptr<runtime::ModuleTable> table_;
  std::unique_ptr<runtime::PlainBackwardGuard> plain_backward_; // of what this rank owns
  std::unique_ptr<sharding::ModelShards> shards_;
  std::unique_ptr<data_parallel::GradientSync> gradients_;
  using Hooks = std::vector<std::shared_ptr<Hook>>;
  static void run_all(Hooks hooks);

  Hooks partition_hooks_;
  Hooks first_step_hooks_; // empty after the first step
  // Of optimizers that share their state out.
  std::vector<std::weak_ptr<const data_parallel::ParameterSet>> shared_states_;
  std::optional<std::pair<TensorMap, bool>> deferred_state_;
  double scale_ = 1;
  std::set<const void*> placed_parameters_; // by the partition, by address
  ReplicaPart replica_;
  bool replica_ends_ = false; // once buffers are shared
  data_parallel::CommHook comm_hook_;
};

} // namespace tessera::model
