#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include "tessera/optim/distributed_optimizer.h"
#include "tessera/optim/grad_scaler.h"

namespace tessera {

using optim::DynamicLossArgs;
using optim::LossScaleOptions;

/// Any torch::optim optimizer over parameters of one or several DistributedModels of this process;
/// its methods are those of optim::DistributedOptimizer.
///
///     tessera::DistributedOptimizer optimizer(
///         torch::optim::AdamW(model.parameters(), options));
///
/// With the key fp16 (docs/training.md) also
///
///     tessera::DistributedOptimizer optimizer(
///         torch::optim::AdamW(model.parameters(), options),
///         {.dynamic_loss_scale = true, .dynamic_loss_args = {.delayed_shift = 2}});
///
/// Threads: step thread only.
/// Source: the library's documentation, `DistributedOptimizer`.
class DistributedOptimizer : public optim::DistributedOptimizer {
 public:
  /// Throws: ConfigError before `init`, and as optim::DistributedOptimizer.
  explicit DistributedOptimizer(
      std::unique_ptr<torch::optim::Optimizer> optimizer,
      const LossScaleOptions& loss_scale = {});
  template <
      typename Optimizer,
      typename = std::enable_if_t<std::is_base_of_v<torch::optim::Optimizer, Optimizer>>>
  explicit DistributedOptimizer(Optimizer&& optimizer, const LossScaleOptions& loss_scale = {})
      : DistributedOptimizer(std::make_unique<Optimizer>(std::move(optimizer)), loss_scale) {}
};

} // namespace tessera
