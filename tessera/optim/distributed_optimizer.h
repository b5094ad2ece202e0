#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

#include "tessera/optim/loss_scaler.h"
#include "tessera/state/optimizer_state.h"
#include "tessera/tensor/torch_compat.h"

namespace tessera {
struct Context;
}
namespace tessera::model {
class ModelCore;
class ModelSet;
} // namespace tessera::model

namespace tessera::optim {

class LossScaling;
class MasterWeights;
class StateSharing;
class StepSeconds;
struct NormOf;
struct Norms;
struct OptimizerAccess;

class DistributedOptimizer;

/// Where an optimizer is, also after it was moved.
class PlaceOfOptimizer {
 protected:
  PlaceOfOptimizer();
  PlaceOfOptimizer(PlaceOfOptimizer&& other) noexcept;
  ~PlaceOfOptimizer() = default;
  const std::shared_ptr<DistributedOptimizer*>& place() const {
    return place_;
  }

 private:
  std::shared_ptr<DistributedOptimizer*> place_;
};

/// Any torch::optim optimizer over parameters of one or several
/// DistributedModels, or over some of one's. It may be made before the
/// partition: each rank then keeps only what it owns.
///
///     tessera::DistributedOptimizer optimizer(
///         torch::optim::AdamW(model.parameters(), options));
///
/// A torch::optim::LBFGS becomes a tessera::optim::LBFGS, whose numbers are
/// those of the whole model. Norms that a Lamb or NovoGrad needs are those of
/// whole parameters.
///
/// Parameters of 16 bits get an f32 master copy: the optimizer updates the
/// master, and the parameter is its rounded value.
///
/// With `shard_optimizer_state` state and master of a parameter live on one of the ranks that hold
/// it, which alone has its gradient after a step: clip with `clip_grad_norm`.
///
/// With the key fp16 losses are multiplied by a scale before their backward,
/// and masters get gradients divided by it. A step whose gradients are not
/// finite on any rank is left out on all of them (`overflow`).
/// Threads: step thread only.
/// Source: the library's documentation, `DistributedOptimizer`.
class DistributedOptimizer : private PlaceOfOptimizer {
 public:
  /// `models`: those whose parameters the optimizer may have. `loss_scale`: for
  /// the key fp16. With shard_optimizer_state collective over the world when one of
  /// the models is partitioned already.
  /// Throws: ConfigError for a parameter that is given twice, an LBFGS with
  /// shard_optimizer_state or fp16, a loss scale without fp16, and one out of range
  /// or beside another optimizer's.
  DistributedOptimizer(
      std::unique_ptr<torch::optim::Optimizer> optimizer,
      const std::shared_ptr<model::ModelSet>& models,
      const LossScaleOptions& loss_scale = {});
  DistributedOptimizer(DistributedOptimizer&& other) noexcept;
  ~DistributedOptimizer();

  using Closure = torch::optim::Optimizer::LossClosure;

  /// Runs one update. Gradients that were made outside of a step are averaged over
  /// the replicas first. `closure`, where given, computes the gradients:
  ///
  ///     optimizer.step([&] {
  ///       optimizer.zero_grad();
  ///       return train_step(x, y).reduce_mean();
  ///     });
  ///
  /// The optimizer is given the mean of all ranks' losses, so all decide alike;
  /// that mean is the result (undefined without a closure).
  ///
  /// With fp16 nothing happens where gradients overflow, but that they become
  /// undefined and the scale may fall; ask `overflow`, and leave out the
  /// scheduler's step too.
  ///
  /// Collective over the world with a closure, tensor parallelism or fp16, and for
  /// optimizers that need norms (whole_norms.h); else over the DP_GROUP.
  /// Throws: UserError (alike on every rank) when the closure returns no loss,
  /// when an optimizer other than LBFGS calls it more than once although no rank
  /// holds the whole model and its state, or as GradientSync::average_rest; what
  /// the closure throws. With shard_optimizer_state or sharded_data_parallel_degree
  /// an error of one rank's optimizer is one of its DP_GROUP.
  at::Tensor step(const Closure& closure = nullptr);
  /// Gradients of this optimizer's parameters become undefined, or zero, by default as libtorch's
  /// own optimizers do it: zeros up to 1.13, undefined from 2.0 on. An optimizer passes a parameter
  /// over whose gradient is undefined, and decays or moves one whose gradient is zero. Also inside
  /// of a step without a pipeline. Not collective, but the same on all ranks.
  /// Throws: UserError inside a step of a pipeline.
  void zero_grad(bool set_to_none = kZeroGradSetsToNone);
  std::vector<torch::optim::OptimizerParamGroup>& param_groups() {
    return optimizer_->param_groups();
  }

  /// Scales the gradients of this optimizer's parameters so that their L2 norm,
  /// over all ranks that hold some, is at most `max_norm`; returns the norm
  /// before. Averages gradients as `step` does. With fp16 the norm is that of
  /// unscaled gradients, infinite or NaN where they overflow, and only those of
  /// masters are scaled: clip_master_grads. Collective over the world.
  /// An infinite `max_norm` only asks for the norm.
  /// Throws: ConfigError for max_norm <= 0, and with sharded data parallelism, where
  /// `step` clips, for a finite one.
  double clip_grad_norm(double max_norm);
  /// Does the same for the tensors that the optimizer steps on alone: gradients of
  /// 16-bit parameters stay as they are. Collective over the world.
  /// Throws: as clip_grad_norm.
  double clip_master_grads(double max_norm);
  /// Returns the norm of all gradients before the last step's clipping; 0 before the first step.
  /// Only with sharded data parallelism, where `step` clips (sdp_gradient_clipping). Not
  /// collective.
  double global_grad_norm() const {
    return global_grad_norm_;
  }

  /// Returns whether the last step was left out because gradients overflowed; the same
  /// on all ranks. Always false without fp16. Not collective.
  bool overflow() const;
  /// Returns what `backward` of models multiplies losses by; 1 without fp16. A loss
  /// whose backward the script runs itself has to be multiplied by it. Not
  /// collective.
  double loss_scale() const;
  /// Returns the scale's state as JSON, "" without fp16. Not collective.
  std::string fp16_states() const;
  /// Takes what `fp16_states` gave; does nothing without fp16. Not collective.
  /// Throws: Error naming the field.
  void load_fp16_states(const std::string& states, const std::string& origin);

  /// Returns state of the parameters that this rank holds, by name; the tensors are the
  /// optimizer's own. The model must be partitioned. Not collective.
  /// With shard_optimizer_state what other ranks keep of it is gathered, as
  /// copies, collectively over the DP_GROUP; `gather_if_shard` false: the part
  /// that this rank keeps, not collective.
  /// Throws: CheckpointError for an optimizer that cannot be divided, or whose
  /// parameters belong to several models: their names may be the same.
  state::OptimizerState local_state_dict(bool gather_if_shard = true);
  /// Returns state of all parameters on every rank of the pipeline, as copies.
  /// Collective over the pipeline, with shard_optimizer_state over the world.
  /// Throws: as local_state_dict.
  state::OptimizerState state_dict();
  /// A whole state (or this rank's part), of which each rank takes its own:
  /// now, or after the partition; then the optimizer must live until that.
  /// Throws: CheckpointError listing what is missing or has another shape.
  void load_state_dict(state::OptimizerState state);

  /// Returns what schedulers and checkpoints work with. Its own step knows nothing of
  /// masters and other ranks: call the DistributedOptimizer's. LBFGS throws.
  torch::optim::Optimizer& inner() {
    return *optimizer_;
  }

 private:
  // OptimizerAccess says what these are for.
  friend struct OptimizerAccess;
  friend class PlaceOfOptimizer;
  void prepare();
  void take_new_parameters();
  void check_parameters_belong(const std::set<const void*>& of_models);
  void check_none_released(const model::ModelSet& all) const;
  model::ModelCore& model() const;
  at::Tensor own_part(const at::Tensor& parameter) const;
  at::Tensor updated_tensor(const at::Tensor& parameter) const;
  NamedTensors updated_tensors() const;
  struct Content {
    NamedTensors parameters;
    state::OptimizerState state;
    /// Ranks with other rdp_ranks than 0 write too, each what it has here.
    bool all_write = false;
  };
  Content content(bool whole);
  void refresh_parameters();
  bool unscale_gradients(double scale);

  struct Owner {
    model::ModelCore* model;
    std::string name; // of the parameter in it
    at::Tensor parameter; // the model's own
  };

  // The live models that have parameters of this optimizer, in order of construction; from
  // `agree_on_models` on the same on all ranks.
  std::vector<model::ModelCore*> models() const;
  bool must_agree_on_models() const;
  void agree_on_models();
  model::ModelSet& model_set() const;
  Context& context() const;
  void find_owners();
  at::Tensor update(const Closure& closure, bool whole_here);
  void average_gradients();
  std::vector<at::Tensor> stepped_gradients() const;
  void begin_loss_scaling(const LossScaleOptions& options);
  void check_has_master(const at::Tensor& parameter, const at::Tensor& master) const;
  void check_scale_in_force() const;
  bool take_gradients();
  void end_scaled_step(bool overflow);
  double clip(double max_norm, bool only_stepped);
  bool has_shards() const;
  at::Tensor update_shards(const std::function<at::Tensor()>& update);
  void warn_of_parts();
  void warn_of_own_class();
  double clip_shards(double max_norm);
  std::vector<at::Tensor> counted_in_world(const at::Tensor& parameter, const at::Tensor& tensor)
      const;
  std::function<Norms(const std::vector<NormOf>&)> norms_for_update(bool whole_here);
  void number_parameters();
  Norms whole_norms(const std::vector<NormOf>& asked) const;
  at::Tensor evaluate(const Closure& closure);
  std::vector<at::Tensor> counted_once(const at::Tensor& parameter, const at::Tensor& tensor) const;

  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::vector<at::Tensor> parameters_; // the model's own, masters or not
  std::unique_ptr<MasterWeights> masters_;
  std::unique_ptr<StateSharing> sharing_; // of shard_optimizer_state
  std::unique_ptr<StepSeconds> step_seconds_;
  std::unique_ptr<LossScaling> scaling_; // with fp16
  std::weak_ptr<model::ModelSet> model_set_;
  /// The models' parameters that this rank owns, and their masters, by address.
  std::map<const void*, Owner> owners_;
  /// Of the parameters that any rank owns, by their model's number and name: the same everywhere.
  std::map<std::string, std::size_t> numbers_;
  std::int64_t numbered_ = -1; // as prepared_
  std::vector<model::ModelCore*> models_; // whose parameters these are
  std::set<int> others_models_; // numbers of those that any rank has parameters of
  /// The revision of the models and the number of parameter groups when ranks agreed on these.
  std::pair<std::int64_t, std::size_t> agreed_on_{-1, 0};
  std::vector<at::Tensor> given_; // what it was made with, also empty handles
  std::set<const void*> given_set_; // the same, by address
  std::int64_t updates_ = 0; // calls of step
  std::set<const void*> known_; // those, and what its groups hold since `prepare`, by address
  bool warned_of_parts_ = false;
  bool warned_of_own_class_ = false;
  bool warned_of_others_ = false;
  double global_grad_norm_ = 0;
  std::map<int, std::string> updated_models_; // labels of those it was prepared for, by number
  std::int64_t prepared_ = -1; // the revision of the models that `prepare` has seen
};

} // namespace tessera::optim
