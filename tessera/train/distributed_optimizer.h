#pragma once

#include <memory>
#include <utility>

#include <torch/optim/optimizer.h>

#include "tessera/train/model_core.h"

namespace tessera {

/// Any torch::optim optimizer over a DistributedModel's parameters. It may be
/// made before the partition: each rank updates what it owns.
///
///     tessera::DistributedOptimizer optimizer(
///         torch::optim::AdamW(model.parameters(), options));
///
/// Threads: step thread only.
/// Source: the library's documentation, `DistributedOptimizer`.
class DistributedOptimizer {
 public:
  explicit DistributedOptimizer(
      std::unique_ptr<torch::optim::Optimizer> optimizer);
  template <
      typename Optimizer,
      typename = std::enable_if_t<
          std::is_base_of_v<torch::optim::Optimizer, Optimizer>>>
  explicit DistributedOptimizer(Optimizer&& optimizer)
      : DistributedOptimizer(
            std::make_unique<Optimizer>(std::move(optimizer))) {}

  /// Not collective.
  void step();
  /// Gradients become undefined, or zero. Not collective.
  void zero_grad(bool set_to_none = true);
  std::vector<torch::optim::OptimizerParamGroup>& param_groups() {
    return optimizer_->param_groups();
  }

  /// Scales all gradients so that their L2 norm over the whole model is at most
  /// `max_norm`; returns the norm before. Collective over the model replica.
  /// Throws: ConfigError for max_norm <= 0.
  double clip_grad_norm(double max_norm);

  /// What schedulers and checkpoints work with.
  torch::optim::Optimizer& inner() {
    return *optimizer_;
  }

 private:
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

} // namespace tessera
