#include "tessera/optim/loss_scaling.h"

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/base/log.h"

namespace tessera::optim {

namespace {

std::shared_ptr<LossScaler> made(const LossScaleOptions& options) {
  const LossScaleOptions unsaid;
  if (options.dynamic_loss_scale) {
    if (options.static_loss_scale != unsaid.static_loss_scale) {
      throw ConfigError(tessera::str(
          "DistributedOptimizer: static_loss_scale is ",
          options.static_loss_scale,
          " and dynamic_loss_scale is true; keep one"));
    }
    return std::make_shared<LossScaler>(options.dynamic_loss_args);
  }
  if (options.dynamic_loss_args != unsaid.dynamic_loss_args) {
    throw ConfigError(
        "DistributedOptimizer: dynamic_loss_args have no effect without dynamic_loss_scale = "
        "true");
  }
  return std::make_shared<LossScaler>(options.static_loss_scale);
}

// A sum in f64 of finite f16 or f32 numbers is finite.
bool is_finite(const at::Tensor& gradient) {
  const at::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
  return values.sum(at::kDouble).isfinite().item<bool>();
}

} // namespace

bool any_overflow(const std::vector<at::Tensor>& gradients, comm::ProcessGroup& group) {
  const at::NoGradGuard no_grad;
  bool overflow = false;
  for (const at::Tensor& gradient : gradients) {
    overflow = overflow || !is_finite(gradient);
  }
  at::Tensor flag = at::full({1}, overflow ? 1 : 0, at::kByte);
  group.all_reduce(flag, comm::ReduceOp::kMax);
  return flag.item<std::uint8_t>() != 0;
}

LossScaling::LossScaling(const LossScaleOptions& options) : scaler_(made(options)) {}

void LossScaling::update(bool overflow, bool speaks) {
  overflow_ = overflow;
  const double before = scale();
  const LossScaler::Outcome outcome = scaler_->update(overflow);
  if (outcome != LossScaler::Outcome::kOverflowAtMinimum) {
    warned_ = false;
    return;
  }
  if (speaks && !warned_) {
    log::warning(tessera::str(
        "fp16: gradients are not finite at the ",
        scaler_->dynamic() ? "smallest" : "static",
        " loss scale ",
        before,
        ", so the update was left out and the scale stays. ",
        scaler_->dynamic() ? "A smaller min_scale may help; else "
                           : "Write dynamic_loss_scale = true; else ",
        "lower the learning rate, or train in bf16"));
  }
  warned_ = true;
}

} // namespace tessera::optim
