#pragma once

#include <cstdint>
#include <string>

namespace tessera::optim {

/// How a dynamic loss scale moves. Names and defaults are those of the library's documentation.
struct DynamicLossArgs {
  double init_scale = 4294967296.0; // 2^32
  /// What the scale is divided by after an overflow, and multiplied by after `scale_window` steps.
  double scale_factor = 2;
  std::int64_t scale_window = 1000; // steps without overflow
  double min_scale = 1;
  /// Overflows that it takes until the scale falls; the first ones only leave their update out.
  std::int64_t delayed_shift = 1;
  /// Every step without overflow forgets those before it; false: only a growing scale does.
  bool consecutive_hysteresis = false;

  bool operator==(const DynamicLossArgs&) const = default;
};

/// What DistributedOptimizer is given beside the optimizer, with the key fp16.
/// Source: the library's documentation, `DistributedOptimizer`.
struct LossScaleOptions {
  /// What losses are multiplied by, where the scale is not dynamic.
  double static_loss_scale = 1;
  /// The scale falls when gradients overflow, and rises while they do not.
  bool dynamic_loss_scale = false;
  DynamicLossArgs dynamic_loss_args = {};

  bool operator==(const LossScaleOptions&) const = default;
};

/// The number that a loss is multiplied by so that small gradients are no zeros in f16, and how it
/// follows from the overflows of the steps before. Not collective: ranks that say the same about
/// every step have the same scale. Threads: one at a time.
/// Source: Micikevicius et al. 2018, section 3.2; the library's documentation,
/// `DistributedOptimizer`.
class LossScaler {
 public:
  /// A scale that stays. Throws: ConfigError unless it is finite and above 0.
  explicit LossScaler(double static_scale);
  /// Throws: ConfigError naming the argument, for a scale or bound that is not finite and above 0,
  /// an init_scale below min_scale, a factor of 1 or less, a window or delayed_shift below 1.
  explicit LossScaler(const DynamicLossArgs& args);

  const double& scale() const {
    return scale_;
  }
  bool dynamic() const {
    return dynamic_;
  }

  enum class Outcome {
    kClean,
    kOverflow, // the update is left out
    kOverflowAtMinimum // and the scale cannot fall any more, or is static
  };
  /// Ends a step, whose gradients overflowed or did not; returns what follows.
  Outcome update(bool overflow);

  /// Returns scale and counts as JSON, to the bit, for a checkpoint.
  std::string to_json() const;
  /// A static scale stays as it is. Throws: Error naming the field and `origin`.
  void set_state(const std::string& json, const std::string& origin);

 private:
  template <typename Visit>
  void describe_state(Visit& visit);

  DynamicLossArgs args_;
  bool dynamic_;
  double scale_;
  std::int64_t clean_steps_ = 0; // since the last overflow
  std::int64_t hysteresis_; // overflows until the scale falls
};

} // namespace tessera::optim
