#include "tessera/optim/loss_scaler.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/base/json/parse.h"
#include "tessera/base/json/read.h"
#include "tessera/base/json/write.h"

namespace tessera::optim {

namespace {

constexpr double kLargest = 1e300;

void check(bool right, const char* name, double found, const char* wanted) {
  if (!right) {
    throw ConfigError(str(name, " is ", found, "; write ", wanted));
  }
}

bool is_scale(double value) {
  return value > 0 && value <= kLargest;
}

} // namespace

LossScaler::LossScaler(double static_scale)
    : dynamic_(false), scale_(static_scale), hysteresis_(1) {
  check(is_scale(static_scale), "static_loss_scale", static_scale, "a number above 0");
}

LossScaler::LossScaler(const DynamicLossArgs& args)
    : args_(args), dynamic_(true), scale_(args.init_scale), hysteresis_(args.delayed_shift) {
  const auto number = [](std::int64_t value) { return static_cast<double>(value); };
  check(is_scale(args.min_scale), "min_scale", args.min_scale, "a number above 0");
  check(
      is_scale(args.init_scale) && args.init_scale >= args.min_scale,
      "init_scale",
      args.init_scale,
      "at least min_scale");
  check(
      args.scale_factor > 1 && std::isfinite(args.scale_factor),
      "scale_factor",
      args.scale_factor,
      "more than 1");
  check(args.scale_window >= 1, "scale_window", number(args.scale_window), "1 or more");
  check(args.delayed_shift >= 1, "delayed_shift", number(args.delayed_shift), "1 or more");
}

LossScaler::Outcome LossScaler::update(bool overflow) {
  if (overflow) {
    clean_steps_ = 0;
    const bool lowest = !dynamic_ || scale_ <= args_.min_scale;
    if (hysteresis_ > 1) {
      --hysteresis_;
    } else if (dynamic_) {
      scale_ = std::max(scale_ / args_.scale_factor, args_.min_scale);
    }
    return lowest ? Outcome::kOverflowAtMinimum : Outcome::kOverflow;
  }
  if (!dynamic_) {
    return Outcome::kClean;
  }
  if (args_.consecutive_hysteresis) {
    hysteresis_ = args_.delayed_shift;
  }
  ++clean_steps_;
  if (clean_steps_ % args_.scale_window == 0) {
    hysteresis_ = args_.delayed_shift;
    scale_ = std::min(scale_ * args_.scale_factor, kLargest);
  }
  return Outcome::kClean;
}

template <typename Visit>
void LossScaler::describe_state(Visit& visit) {
  constexpr form::Bounds kCount = form::at_least(0);
  constexpr form::Bounds kAtLeastOne = form::at_least(1);
  visit({.name = "scale", .bounds = {.min = 0, .max = kLargest, .above_min = true}}, scale_);
  visit({.name = "clean_steps", .bounds = kCount}, clean_steps_);
  visit({.name = "hysteresis", .bounds = kAtLeastOne}, hysteresis_);
}

std::string LossScaler::to_json() const {
  form::Writer writer;
  // One description serves readers and writers, which change nothing.
  const_cast<LossScaler*>(this)->describe_state(writer);
  return writer.object.dump();
}

void LossScaler::set_state(const std::string& json, const std::string& origin) {
  const auto state = parse_json<OrderedJson>(json, origin);
  form::Faults faults(origin);
  form::Reader reader(state, faults);
  LossScaler read = *this;
  read.describe_state(reader);
  if (!dynamic_) {
    return;
  }
  *this = std::move(read);
  // The run may have been given other arguments than the one that was saved.
  scale_ = std::max(scale_, args_.min_scale);
  hysteresis_ = std::min(hysteresis_, args_.delayed_shift);
}

} // namespace tessera::optim
