#include "tessera/sharding/shard_reducer.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include "tessera/autograd/addition_hook.h"
#include "tessera/base/error.h"

namespace tessera::sharding {

ShardReducer::ShardReducer(
    comm::World& world,
    const std::vector<const DividedParameter*>& parameters,
    const Groups& groups,
    const Options& options)
    : world_(world),
      shards_(groups.shards),
      replicas_(groups.replicas),
      control_(groups.control),
      options_(options) {
  std::vector<at::Tensor> wholes;
  for (const DividedParameter* divided : parameters) {
    Parameter& parameter = parameters_.emplace_back();
    parameter.divided = divided;
    parameter.slot = std::make_shared<GradientSlot>();
    parameter.slot->name = divided->name;
    parameter.slot->part = divided->part;
    parameter.slot->f32_sums = options_.f32_sums;
    wholes.push_back(divided->whole);
  }
  if (options_.f32_sums) {
    f32_gradients_ = std::make_unique<F32Gradients>(std::move(wholes));
  }
  find_trainable();
}

ShardReducer::~ShardReducer() {
  for (const Parameter& parameter : parameters_) {
    if (parameter.accumulator != nullptr) {
      parameter.accumulator->del_post_hook(parameter.hook);
    }
  }
}

// A script may freeze parameters and thaw them again between steps.
void ShardReducer::find_trainable() {
  if (f32_gradients_ != nullptr) {
    f32_gradients_->find_trainable(); // its hooks come before ours
  }
  bool changed = order_.size() != parameters_.size();
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    const bool trainable = parameter.divided->whole.requires_grad();
    changed = changed || trainable != parameter.trainable;
    parameter.trainable = trainable;
    if (trainable && parameter.accumulator == nullptr) {
      parameter.accumulator = torch::autograd::impl::grad_accumulator(parameter.divided->whole);
      parameter.hook = parameter.accumulator->add_post_hook(std::make_unique<AdditionHook>(
          parameter.accumulator.get(), [this, i] { added(static_cast<int>(i)); }));
    }
  }
  if (changed) {
    // The first step has not shown an order yet; what is registered last is complete first.
    std::vector<int> order(parameters_.size());
    std::iota(order.rbegin(), order.rend(), 0);
    make_buckets(order);
    learnt_ = false;
  }
}

std::string ShardReducer::text_of_zeroing(const std::string& name) {
  return str(
      "the gradient of the parameter '",
      name,
      "' was set to zero inside of a step, which with pipeline_parallel_degree greater than 1 "
      "happens on pp rank 0 alone, while other microbatches add (sharded_data_parallel_degree); "
      "call zero_grad before the step");
}

bool ShardReducer::has_whole_gradient(const Parameter& parameter) const {
  const at::Tensor& gradient = parameter.divided->whole.grad();
  return gradient.defined() && !is_gradient_handle(gradient);
}

void ShardReducer::settle() {
  for (Parameter& parameter : parameters_) {
    if (!active_ && !is_gradient_handle(parameter.divided->whole.grad())) {
      GradientSlot& slot = *parameter.slot;
      slot.part.mutable_grad() = at::Tensor();
      slot.zero = false;
      slot.sum = at::Tensor();
      slot.extra = at::Tensor();
      slot.reached = false;
    }
  }
}

void ShardReducer::show_handle(Parameter& parameter) {
  if (!has_whole_gradient(parameter)) {
    whole_gradient(parameter) = parameter.slot->active()
                                    ? gradient_handle(parameter.divided->whole, parameter.slot)
                                    : at::Tensor();
  }
}

void ShardReducer::begin(bool reduce) {
  settle();
  find_trainable();
  reduce_ = reduce;
  active_ = true;
  backward_ = false;
  microbatch_ = 0;
  launching_ = 0;
  next_bucket_ = 0;
  completed_ = 0;
  for (Parameter& parameter : parameters_) {
    parameter.reached_in = -1;
    parameter.zeroed_in = -1;
    parameter.first_done = -1;
    parameter.packed = false;
    parameter.rounds.clear();
    if (overlaps() && !learnt_) {
      parameter.expected = parameter.trainable ? 1 : 0; // most are used once in a microbatch
    }
    see(parameter);
  }
  for (Bucket& bucket : buckets_) {
    bucket.flat = at::Tensor(); // what a failed step has left
    bucket.used_flat = at::Tensor();
    bucket.used_part = at::Tensor();
  }
  expect_additions();
}

void ShardReducer::expect_additions() {
  for (Parameter& parameter : parameters_) {
    parameter.count = 0;
  }
  for (Bucket& bucket : buckets_) {
    bucket.missing = static_cast<int>(
        std::count_if(bucket.parameters.begin(), bucket.parameters.end(), [&](int index) {
          return parameters_[index].expected > 0;
        }));
  }
}

void ShardReducer::added(int index) {
  Parameter& parameter = parameters_[index];
  at::Tensor& gradient = whole_gradient(parameter);
  if (gradient.defined() && gradient.is_sparse()) {
    gradient = at::Tensor();
    throw UserError(
        str("the parameter '",
            parameter.divided->name,
            "' got a sparse gradient, and sharded_data_parallel_degree divides dense ones only; "
            "leave `sparse` out of the layer's options, or write a "
            "sdp_param_persistence_threshold above its ",
            parameter.divided->whole.numel(),
            " elements"));
  }
  if (!active_ || parameter.bucket < 0) {
    return; // the user's own backward, outside of a step
  }
  if (!at::GradMode::is_enabled()) { // create_graph adds out of place
    notice_zeroed(parameter);
  }
  // The first addition goes to the handle. The next ones are to a tensor of their own, and what was
  // added outside of steps goes along.
  if (is_gradient_handle(gradient)) {
    gradient = std::exchange(parameter.slot->extra, at::Tensor());
  }
  see(parameter);
  backward_ = true;
  ++parameter.count;
  if (!learnt_) {
    parameter.first_done = completed_++; // the last addition counts
  }
  if (overlaps()) {
    added_while_overlapping(parameter);
  } else if (learnt_ && parameter.count == parameter.expected) {
    launch_through(microbatch_ - 1);
    take_gradient(parameter);
    --buckets_[parameter.bucket].missing;
    launch_ready();
  }
}

/// Who is added to in one order sends the same numbers together in every run: those of whole
/// microbatches, whatever has come meanwhile. In the first step nobody knows how many those are.
void ShardReducer::added_while_overlapping(Parameter& parameter) {
  const bool ordered = options_.microbatches == Microbatches::kOrdered;
  if ((ordered && !learnt_) || parameter.expected == 0 ||
      parameter.count % parameter.expected != 0) {
    return;
  }
  if (!ordered) {
    take_gradient(parameter);
  } else if (parameter.count / parameter.expected <= microbatches_) {
    at::Tensor& gradient = whole_gradient(parameter);
    parameter.rounds.push_back(std::exchange(gradient, at::Tensor()));
    see(parameter);
  }
  launch_ready();
}

/// Rounded up: a bucket that waits for too many additions leaves at the end of the step.
void ShardReducer::expect_mean_additions() {
  const bool any = std::any_of(
      parameters_.begin(), parameters_.end(), [](const auto& entry) { return entry.count > 0; });
  for (Parameter& parameter : parameters_) {
    if (any) {
      parameter.expected = (parameter.count + microbatches_ - 1) / microbatches_;
    }
  }
}

void ShardReducer::end_microbatch() {
  if (!active_ || overlaps()) {
    return;
  }
  for (Parameter& parameter : parameters_) {
    notice_zeroed(parameter);
  }
  if (backward_) {
    launch_through(microbatch_);
  }
  ++microbatch_;
  const bool any = std::any_of(
      parameters_.begin(), parameters_.end(), [](const auto& entry) { return entry.count > 0; });
  if (any) {
    for (Parameter& parameter : parameters_) {
      parameter.expected = parameter.count;
    }
  }
  expect_additions();
  land(false);
}

void ShardReducer::see(Parameter& parameter) {
  const at::Tensor& gradient = whole_gradient(parameter);
  parameter.seen.reset();
  if (gradient.defined()) {
    parameter.seen.emplace(gradient.getIntrusivePtr());
  }
}

/// zero_grad of a module knows nothing of parts, but it replaces what the script sees of a
/// gradient. A handle that takes its place has set the parts to zero already.
bool ShardReducer::is_replaced(const Parameter& parameter) const {
  const at::Tensor& gradient = whole_gradient(parameter);
  return parameter.seen && !is_gradient_handle(gradient) &&
         parameter.seen->_unsafe_get_target() != gradient.unsafeGetTensorImpl();
}

void ShardReducer::notice_zeroed(Parameter& parameter) {
  if (is_replaced(parameter)) {
    forget(parameter, /*set_to_none=*/true);
    see(parameter);
  }
}

/// What earlier steps and earlier microbatches of this one have left.
void ShardReducer::forget(Parameter& parameter, bool set_to_none) {
  if (active_ && overlaps()) {
    throw UserError(text_of_zeroing(parameter.divided->name));
  }
  if (std::exchange(parameter.packed, false)) {
    for (int rank = 0; rank < shards_.size(); ++rank) {
      slice_of(parameter, rank).zero_();
    }
  }
  GradientSlot& slot = *parameter.slot;
  const bool any = slot.zero || slot.part.grad().defined() || (slot.reached && slot.sum.defined());
  slot.part.mutable_grad() = at::Tensor();
  slot.zero = any && !set_to_none;
  slot.sum = at::Tensor();
  slot.extra = at::Tensor();
  slot.reached = false;
  parameter.zeroed_in = microbatch_;
}

void ShardReducer::forget_averages(const data_parallel::ParameterSet* of, bool set_to_none) {
  if (!active_) {
    return; // all of a gradient is in its handle
  }
  for (Parameter& parameter : parameters_) {
    if (of == nullptr || of->contains(parameter.divided->whole.unsafeGetTensorImpl())) {
      forget(parameter, set_to_none);
    }
  }
}

} // namespace tessera::sharding
