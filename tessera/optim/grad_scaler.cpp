#include "tessera/optim/grad_scaler.h"

#include <cmath>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/base/json/parse.h"
#include "tessera/base/json/read.h"
#include "tessera/base/json/write.h"
#include "tessera/optim/optimizer_access.h"

namespace tessera::amp {

namespace {

constexpr double kLargestScale = 1e300;

void require(bool right, const char* name, double found, const char* wanted) {
  if (!right) {
    throw ConfigError(str("amp::GradScaler: ", name, " is ", found, "; write ", wanted));
  }
}

} // namespace

GradScaler::GradScaler(const GradScalerOptions& options)
    : options_(options), scale_(options.init_scale) {
  require(scale_ > 0 && scale_ <= kLargestScale, "init_scale", scale_, "a finite number above 0");
  require(
      options.growth_factor > 1 && std::isfinite(options.growth_factor),
      "growth_factor",
      options.growth_factor,
      "more than 1");
  require(
      options.backoff_factor > 0 && options.backoff_factor < 1,
      "backoff_factor",
      options.backoff_factor,
      "more than 0 and less than 1");
  require(
      options.growth_interval >= 1,
      "growth_interval",
      static_cast<double>(options.growth_interval),
      "1 or more");
}

at::Tensor GradScaler::scale(const at::Tensor& loss) const {
  return options_.enabled ? loss * scale_ : loss;
}

void GradScaler::unscale_(optim::DistributedOptimizer& optimizer) {
  if (!options_.enabled) {
    return;
  }
  if (unscaled_.contains(&optimizer)) {
    throw UserError(
        "GradScaler::unscale_ was called twice for an optimizer, or after its step, without an "
        "update() between; call update() once after the step");
  }
  const bool found_inf = optim::OptimizerAccess::unscale_gradients(optimizer, scale_);
  unscaled_[&optimizer].found_inf = found_inf;
}

bool GradScaler::step(optim::DistributedOptimizer& optimizer) {
  if (!options_.enabled) {
    optimizer.step();
    return true;
  }
  if (!unscaled_.contains(&optimizer)) {
    unscale_(optimizer);
  }
  Progress& progress = unscaled_.at(&optimizer);
  if (std::exchange(progress.stepped, true)) {
    throw UserError(
        "GradScaler::step was called twice for an optimizer without an update() between; call "
        "update() once after the step");
  }
  if (!progress.found_inf) {
    optimizer.step();
  }
  return !progress.found_inf;
}

void GradScaler::update() {
  if (!options_.enabled) {
    return;
  }
  if (unscaled_.empty()) {
    throw UserError(
        "GradScaler::update was called, but no optimizer was stepped or unscaled before; call "
        "step(optimizer) first");
  }
  bool found_inf = false;
  for (const auto& [optimizer, progress] : std::exchange(unscaled_, {})) {
    found_inf = found_inf || progress.found_inf;
  }
  if (found_inf) {
    scale_ *= options_.backoff_factor;
    growth_tracker_ = 0;
  } else if (++growth_tracker_ == options_.growth_interval) {
    scale_ = std::min(scale_ * options_.growth_factor, kLargestScale);
    growth_tracker_ = 0;
  }
}

template <typename Visit>
void GradScaler::describe_state(Visit& visit) {
  visit({.name = "scale", .bounds = {.min = 0, .max = kLargestScale, .above_min = true}}, scale_);
  visit({.name = "_growth_tracker", .bounds = form::at_least(0)}, growth_tracker_);
}

std::string GradScaler::state_dict() const {
  form::Writer writer;
  // One description serves readers and writers, which change nothing.
  const_cast<GradScaler*>(this)->describe_state(writer);
  return writer.object.dump();
}

void GradScaler::load_state_dict(const std::string& state) {
  const std::string origin = "GradScaler::load_state_dict";
  const auto object = parse_json<OrderedJson>(state, origin);
  form::Faults faults(origin);
  form::Reader reader(object, faults);
  describe_state(reader);
}

} // namespace tessera::amp
