#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

#include "tessera/checkpoint/optimizer_state.h"
#include "tessera/optim/master_weights.h"
#include "tessera/train/model_core.h"

namespace tessera {

/// Any torch::optim optimizer over a DistributedModel's parameters. It may be
/// made before the partition: each rank then keeps only what it owns.
///
///     tessera::DistributedOptimizer optimizer(
///         torch::optim::AdamW(model.parameters(), options));
///
/// A torch::optim::LBFGS becomes a tessera::optim::LBFGS, whose numbers are
/// those of the whole model.
///
/// Parameters of 16 bits get an f32 master copy: the optimizer updates the
/// master, and the parameter is its rounded value.
/// Threads: step thread only.
/// Source: the library's documentation, `DistributedOptimizer`.
class DistributedOptimizer {
 public:
  explicit DistributedOptimizer(std::unique_ptr<torch::optim::Optimizer> optimizer);
  template <
      typename Optimizer,
      typename = std::enable_if_t<std::is_base_of_v<torch::optim::Optimizer, Optimizer>>>
  explicit DistributedOptimizer(Optimizer&& optimizer)
      : DistributedOptimizer(std::make_unique<Optimizer>(std::move(optimizer))) {}

  using Closure = torch::optim::Optimizer::LossClosure;

  /// One update. Gradients that were made outside of a step are averaged over
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
  /// Collective over the world with a closure or tensor parallelism, else over
  /// the DP_GROUP.
  /// Throws: UserError (alike on every rank) when the closure returns no loss,
  /// when an optimizer other than LBFGS calls it more than once although no rank
  /// holds the whole model, or as ModelCore::average_gradients; what the closure
  /// throws.
  at::Tensor step(const Closure& closure = nullptr);
  /// Gradients become undefined, or zero. Not collective.
  void zero_grad(bool set_to_none = true);
  std::vector<torch::optim::OptimizerParamGroup>& param_groups() {
    return optimizer_->param_groups();
  }

  /// Scales all gradients so that their L2 norm over the whole model is at most
  /// `max_norm`; returns the norm before. Averages gradients as `step` does.
  /// Collective over the world.
  /// Throws: ConfigError for max_norm <= 0.
  double clip_grad_norm(double max_norm);

  /// State of the parameters that this rank owns, by name; the tensors are the
  /// optimizer's own. The model must be partitioned. Not collective.
  /// Throws: CheckpointError for an optimizer that cannot be divided.
  checkpoint::OptimizerState local_state_dict();
  /// State of all parameters on every rank of the pipeline, as copies.
  /// Collective over the pipeline. Throws: as local_state_dict.
  checkpoint::OptimizerState state_dict();
  /// A whole state (or this rank's part), of which each rank takes its own:
  /// now, or after the partition; then the optimizer must live until that.
  /// Throws: CheckpointError listing what is missing or has another shape.
  void load_state_dict(checkpoint::OptimizerState state);

  /// What schedulers and checkpoints work with. Its own step knows nothing of
  /// masters and other ranks: call the DistributedOptimizer's. LBFGS throws.
  torch::optim::Optimizer& inner() {
    return *optimizer_;
  }

  /// After the partition: leaves what other ranks own to them and makes the
  /// masters. Called by step and by checkpoints; harmless to repeat.
  void prepare();
  /// The tensor the optimizer updates for a parameter: its master or itself.
  at::Tensor updated_tensor(const at::Tensor& parameter) const {
    return masters_.of(parameter);
  }
  /// After masters were loaded: parameters take their values.
  void refresh_parameters() {
    masters_.write_back();
  }

 private:
  at::Tensor evaluate(const Closure& closure);
  std::vector<at::Tensor> counted_once(const at::Tensor& parameter, const at::Tensor& tensor) const;

  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::vector<at::Tensor> parameters_; // the model's own, masters or not
  optim::MasterWeights masters_;
  /// The model's parameters that this rank owns, and their masters, by address.
  std::map<const void*, std::string> names_;
  bool prepared_ = false;
};

} // namespace tessera
