#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include <torch/optim/optimizer.h>

namespace tessera::optim {

/// torch::optim::AdamWOptions' names and defaults, without amsgrad.
struct AdamW8bitOptions : torch::optim::OptimizerCloneableOptions<AdamW8bitOptions> {
  explicit AdamW8bitOptions(double lr = 1e-3) : lr_(lr) {}
  using Betas = std::tuple<double, double>;
  TORCH_ARG(double, lr) = 1e-3;
  TORCH_ARG(Betas, betas) = std::make_tuple(0.9, 0.999);
  TORCH_ARG(double, eps) = 1e-8;
  TORCH_ARG(double, weight_decay) = 1e-2;
  /// bf16 parameters have no f32 master: the new value is rounded up or down at random.
  TORCH_ARG(bool, stochastic_rounding) = false;

 public:
  double get_lr() const override {
    return lr_;
  }
  void set_lr(const double lr) override {
    lr_ = lr;
  }
};

class StochasticRounding;

/// AdamW with torch's formulas whose two averages take a byte for each element and 8 bytes for each
/// 256: blocks of a parameter's elements in row-major order, each with a scale in f32. What has
/// fewer than 4096 elements on this rank has f32 averages. On the processor.
///
/// With `stochastic_rounding`, in a DistributedOptimizer, a bf16 parameter and its state take 4.03
/// bytes an element between updates. The random bits depend on the key `seed`, the parameter's
/// name in the script's model, the element's number in it and how many updates it has had: every
/// layout rounds equal numbers alike.
///
/// Checkpoints hold the averages in f32, which fits every layout. Under the same layout a resumed
/// run is the uninterrupted one, to the bit; under one that divides parameters otherwise blocks
/// have other borders, and averages are rounded once more.
/// Threads: step thread only.
/// Source: Dettmers et al. 2022, section 2; Loshchilov and Hutter 2019, algorithm 2.
class AdamW8bit : public torch::optim::Optimizer {
 public:
  explicit AdamW8bit(
      std::vector<at::Tensor> parameters,
      const AdamW8bitOptions& options = AdamW8bitOptions());
  explicit AdamW8bit(
      std::vector<torch::optim::OptimizerParamGroup> groups,
      const AdamW8bitOptions& options = AdamW8bitOptions());

  /// Not collective.
  /// Throws: UserError for a sparse gradient, for a parameter that is not on the processor or not
  /// f32 or, with stochastic_rounding, bf16, and for a bf16 parameter whose place in a model
  /// nobody has told (`round_by`).
  at::Tensor step(LossClosure closure = nullptr) override;

  /// How a parameter is rounded; nullptr: nobody knows. Asked in each step. A DistributedOptimizer
  /// calls this. Not collective.
  using RoundingOf = std::function<const StochasticRounding*(const at::Tensor& parameter)>;
  void round_by(RoundingOf rounding) {
    rounding_ = std::move(rounding);
  }

 private:
  RoundingOf rounding_;
};

} // namespace tessera::optim
