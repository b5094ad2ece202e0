#pragma once

#include <memory>
#include <type_traits>
#include <utility>

#include "tessera/optim/distributed_optimizer.h"

namespace tessera {

/// Any torch::optim optimizer over parameters of one or several DistributedModels of this process;
/// its methods are those of optim::DistributedOptimizer.
///
///     tessera::DistributedOptimizer optimizer(
///         torch::optim::AdamW(model.parameters(), options));
///
/// Threads: step thread only.
/// Source: the library's documentation, `DistributedOptimizer`.
class DistributedOptimizer : public optim::DistributedOptimizer {
 public:
  /// Throws: ConfigError before `init`, or for a parameter that is given twice.
  explicit DistributedOptimizer(std::unique_ptr<torch::optim::Optimizer> optimizer);
  template <
      typename Optimizer,
      typename = std::enable_if_t<std::is_base_of_v<torch::optim::Optimizer, Optimizer>>>
  explicit DistributedOptimizer(Optimizer&& optimizer)
      : DistributedOptimizer(std::make_unique<Optimizer>(std::move(optimizer))) {}
};

} // namespace tessera
