#pragma once

#include <cstdint>
#include <string>

#include <torch/optim/optimizer.h>

namespace tessera::optim {

/// A learning rate that rises linearly from 0 over `warmup` steps, is at its
/// peak at step `warmup`, and has decayed to `minimum` exactly at step `total`,
/// where it stays.
struct LearningRate {
  double peak = 1e-3;
  double minimum = 0;
  std::int64_t warmup = 0;
  std::int64_t total = 1;
  /// "constant", "linear", "cosine" or "exponential" (then minimum > 0). "plateau" is the peak
  /// after the warm-up: losses decide, which are not known here (plateau.h).
  std::string decay = "cosine";

  /// Returns the rate of the step-th update, from 0. Not collective.
  double at(std::int64_t step) const;
  /// Returns the same lowered by `factor`, not below `minimum` once the warm-up is over.
  double at(std::int64_t step, double factor) const;
  /// Throws: ConfigError naming the field.
  void validate() const;
};

/// Sets the rate of every parameter group.
void set_learning_rate(torch::optim::Optimizer& optimizer, double rate);

} // namespace tessera::optim
