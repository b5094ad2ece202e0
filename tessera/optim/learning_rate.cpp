#include "tessera/optim/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "tessera/base/error.h"

namespace tessera::optim {

double LearningRate::at(std::int64_t step) const {
  if (step < warmup) {
    // The first update must not be lost: rates are those of steps 1 to warmup.
    return peak * static_cast<double>(step + 1) / static_cast<double>(warmup + 1);
  }
  if (decay == "constant" || decay == "plateau") {
    return peak;
  }
  if (step >= total) {
    return minimum;
  }
  const double share = static_cast<double>(step - warmup) / static_cast<double>(total - warmup);
  if (decay == "linear") {
    return peak + (minimum - peak) * share;
  }
  if (decay == "cosine") {
    return minimum + (peak - minimum) * 0.5 * (1 + std::cos(std::numbers::pi * share));
  }
  return peak * std::pow(minimum / peak, share); // exponential
}

double LearningRate::at(std::int64_t step, double factor) const {
  const double lowered = at(step) * factor;
  return step < warmup ? lowered : std::max(minimum, lowered);
}

void LearningRate::validate() const {
  if (!(peak > 0)) {
    throw ConfigError(str("learning_rate is ", peak, "; write more than 0"));
  }
  if (minimum < 0 || minimum > peak) {
    throw ConfigError(
        str("min_learning_rate is ", minimum, "; write 0 to the learning rate, ", peak));
  }
  if (warmup < 0 || total <= warmup) {
    throw ConfigError(
        str("warm-up of ",
            warmup,
            " steps in a schedule of ",
            total,
            "; write 0 or more, and fewer than all"));
  }
  if (decay != "constant" && decay != "linear" && decay != "cosine" && decay != "exponential" &&
      decay != "plateau") {
    throw ConfigError(
        str("decay is '", decay, "'; write constant, linear, cosine, exponential or plateau"));
  }
  if (decay == "exponential" && minimum == 0) {
    throw ConfigError("exponential decay never reaches 0; write a min_learning_rate above 0");
  }
}

void set_learning_rate(torch::optim::Optimizer& optimizer, double rate) {
  for (auto& group : optimizer.param_groups()) {
    group.options().set_lr(rate);
  }
}

} // namespace tessera::optim
