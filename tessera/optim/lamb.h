#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include <torch/optim/optimizer.h>

#include "tessera/optim/whole_norms.h"

namespace tessera::optim {

/// Names and defaults are those of the documentation's fused LAMB.
struct LambOptions : torch::optim::OptimizerCloneableOptions<LambOptions> {
  explicit LambOptions(double lr = 1e-3) : lr_(lr) {}
  using Betas = std::tuple<double, double>;
  TORCH_ARG(double, lr) = 1e-3;
  TORCH_ARG(Betas, betas) = std::make_tuple(0.9, 0.999);
  TORCH_ARG(double, eps) = 1e-6;
  TORCH_ARG(double, weight_decay) = 1e-2;
  TORCH_ARG(bool, bias_correction) = true;
  /// A gradient enters its average times 1 - beta 1; false: times 1.
  TORCH_ARG(bool, grad_averaging) = true;
  /// Gradients are divided so that the norm of all is at most this; 0: they are not. What
  /// sdp_gradient_clipping has clipped comes clipped. That of the first group counts.
  TORCH_ARG(double, max_grad_norm) = 1.0;
  /// The ratio of norms also where weight_decay is 0.
  TORCH_ARG(bool, use_nvlamb) = false;

 public:
  double get_lr() const override {
    return lr_;
  }
  void set_lr(const double lr) override {
    lr_ = lr;
  }
};

/// What Lamb keeps for each parameter; tensors have its shape.
struct LambParamState : torch::optim::OptimizerCloneableParamState<LambParamState> {
  std::int64_t step = 0;
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq;
};

/// Adam's direction, whose length for each parameter is the norm of that parameter: an update is
/// `lr * |p| / |u| * u` with `u` Adam's update and the decay.
///
/// In a DistributedOptimizer norms are those of whole parameters, however ranks divide or share
/// them: the numbers are one process's, with pipelines, tensor parallelism, shard_optimizer_state
/// and sharded data parallelism. A parameter is one of the module that runs: where tensor
/// parallelism replaces a module by one with other parameters, norms are of these.
///
/// A step holds the updates of all of a rank's parameters at once.
/// Threads: step thread only.
/// Source: You et al. 2020, algorithm 2.
class Lamb : public torch::optim::Optimizer, public NeedsNorms {
 public:
  explicit Lamb(std::vector<at::Tensor> parameters, const LambOptions& options = LambOptions());
  explicit Lamb(
      std::vector<torch::optim::OptimizerParamGroup> groups,
      const LambOptions& options = LambOptions());

  /// In a DistributedOptimizer two messages, of 16 bytes for each parameter of the model from every
  /// rank to every rank, where no rank holds the whole model.
  /// Throws: UserError for a sparse gradient, on every rank.
  at::Tensor step(LossClosure closure = nullptr) override;
};

} // namespace tessera::optim
