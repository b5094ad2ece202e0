#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include <torch/optim/optimizer.h>

#include "tessera/optim/whole_norms.h"

namespace tessera::optim {

/// Names and defaults are those of the documentation's fused NovoGrad, of the L2 norm.
struct NovoGradOptions : torch::optim::OptimizerCloneableOptions<NovoGradOptions> {
  explicit NovoGradOptions(double lr = 1e-3) : lr_(lr) {}
  using Betas = std::tuple<double, double>;
  TORCH_ARG(double, lr) = 1e-3;
  TORCH_ARG(Betas, betas) = std::make_tuple(0.9, 0.999);
  TORCH_ARG(double, eps) = 1e-8;
  TORCH_ARG(double, weight_decay) = 0;
  TORCH_ARG(bool, bias_correction) = true;
  /// The moment is one of normalized gradients with their decay, as in the source's algorithm 1;
  /// false: one of gradients, normalized when it is used, and decay is added then.
  TORCH_ARG(bool, reg_inside_moment) = false;
  /// What enters the moment does so times 1 - beta 1; false: times 1.
  TORCH_ARG(bool, grad_averaging) = true;
  /// The average of norms begins with 0; false: with the first norm.
  TORCH_ARG(bool, init_zero) = false;

 public:
  double get_lr() const override {
    return lr_;
  }
  void set_lr(const double lr) override {
    lr_ = lr;
  }
};

/// What NovoGrad keeps for each parameter: one tensor of its shape, and a number.
struct NovoGradParamState : torch::optim::OptimizerCloneableParamState<NovoGradParamState> {
  std::int64_t step = 0;
  at::Tensor exp_avg;
  double norm = 0; // the root of the average of squared norms of gradients
};

/// Momentum of gradients that are divided by an average of their norm, one for each parameter: half
/// of Adam's state. Norms in a DistributedOptimizer: as Lamb's.
/// Threads: step thread only.
/// Source: Ginsburg et al. 2019, algorithm 1.
class NovoGrad : public torch::optim::Optimizer, public NeedsNorms {
 public:
  explicit NovoGrad(
      std::vector<at::Tensor> parameters,
      const NovoGradOptions& options = NovoGradOptions());
  explicit NovoGrad(
      std::vector<torch::optim::OptimizerParamGroup> groups,
      const NovoGradOptions& options = NovoGradOptions());

  /// In a DistributedOptimizer one message, of 16 bytes for each parameter of the model from every
  /// rank to every rank, where no rank holds the whole model.
  /// Throws: UserError for a sparse gradient, on every rank.
  at::Tensor step(LossClosure closure = nullptr) override;
};

} // namespace tessera::optim
