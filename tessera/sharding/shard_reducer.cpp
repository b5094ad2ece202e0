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
    const DividedParameters& parameters,
    comm::ProcessGroup& replicas,
    comm::ProcessGroup& control,
    const Options& options)
    : world_(world),
      divided_(parameters),
      shards_(parameters.group()),
      replicas_(replicas),
      control_(control),
      options_(options) {
  for (const DividedParameter& divided : divided_.list()) {
    Parameter& parameter = parameters_.emplace_back();
    parameter.divided = &divided;
    parameter.slot = std::make_shared<GradientSlot>();
    parameter.slot->name = divided.name;
    parameter.slot->part = divided.part;
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

void ShardReducer::make_buckets(const std::vector<int>& order) {
  order_ = order;
  buckets_.clear();
  for (const int index : order) {
    Parameter& parameter = parameters_[index];
    parameter.bucket = -1;
    if (!parameter.trainable) {
      continue;
    }
    const DividedParameter& divided = *parameter.divided;
    const bool fits = !buckets_.empty() &&
                      parameters_[buckets_.back().parameters[0]].divided->part.scalar_type() ==
                          divided.part.scalar_type() &&
                      (buckets_.back().part_elements + divided.per_rank) * shards_.size() <=
                          options_.bucket_elements;
    if (!fits) {
      buckets_.emplace_back();
    }
    Bucket& bucket = buckets_.back();
    bucket.parameters.push_back(index);
    bucket.part_elements += divided.per_rank;
    parameter.bucket = static_cast<int>(buckets_.size()) - 1;
  }
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
    see(parameter);
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
  } else if (parameter.count == parameter.expected) {
    --buckets_[parameter.bucket].missing;
    launch_ready();
  }
}

void ShardReducer::end_microbatch() {
  if (!active_) {
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

/// Every bucket of the microbatches up to this one, in order.
void ShardReducer::launch_through(int microbatch) {
  while (launching_ <= microbatch) {
    while (next_bucket_ < buckets_.size()) {
      launch(next_bucket_++, false);
    }
    ++launching_;
    next_bucket_ = 0;
  }
}

void ShardReducer::launch_ready() {
  launch_through(microbatch_ - 1);
  while (launching_ == microbatch_ && next_bucket_ < buckets_.size() &&
         buckets_[next_bucket_].missing <= 0) {
    launch(next_bucket_++, false);
  }
}

at::TensorOptions ShardReducer::options_of_sum(const at::Tensor& part) {
  const auto type = part.scalar_type();
  return part.options().requires_grad(false).dtype(type == at::kHalf ? at::kFloat : type);
}

void ShardReducer::launch(std::size_t index, bool zeros) {
  const at::NoGradGuard no_grad;
  const Bucket& bucket = buckets_[index];
  const int ranks = shards_.size();
  const at::Tensor& like = parameters_[bucket.parameters[0]].divided->part;
  Flight flight{index, launching_, {}, {}, nullptr};
  flight.flat = at::empty({ranks, bucket.part_elements}, options_of_sum(like));
  flight.part = at::empty({bucket.part_elements}, flight.flat.options());
  std::int64_t offset = 0;
  for (const int i : bucket.parameters) {
    Parameter& parameter = parameters_[i];
    const std::int64_t per_rank = parameter.divided->per_rank;
    notice_zeroed(parameter);
    at::Tensor& gradient = whole_gradient(parameter);
    const bool wanted = !zeros && launching_ >= parameter.zeroed_in;
    if (wanted && !has_whole_gradient(parameter) && parameter.slot->extra.defined()) {
      gradient = std::exchange(parameter.slot->extra, at::Tensor());
    }
    const bool given = wanted && has_whole_gradient(parameter);
    const at::Tensor rows = given ? gradient.detach().reshape({-1}) : at::Tensor();
    for (int rank = 0; rank < ranks; ++rank) {
      const at::Tensor to = flight.flat[rank].narrow(0, offset, per_rank);
      const std::int64_t begin = given ? std::min(per_rank * rank, rows.numel()) : 0;
      const std::int64_t count = given ? std::min(per_rank, rows.numel() - begin) : 0;
      if (count > 0) {
        to.narrow(0, 0, count).copy_(rows.narrow(0, begin, count));
      }
      if (count < per_rank) {
        to.narrow(0, count, per_rank - count).zero_();
      }
    }
    if (given) {
      parameter.reached_in = launching_;
      gradient = at::Tensor();
      see(parameter);
    }
    offset += per_rank;
  }
  flight.work =
      shards_.reduce_scatter_async(flight.part, flight.flat.view({-1}), comm::ReduceOp::kSum);
  flights_.push_back(std::move(flight));
}

/// Adds what has arrived to the sums, in the order of departure.
void ShardReducer::land(bool wait) {
  const at::NoGradGuard no_grad;
  while (!flights_.empty() && (wait || flights_.front().work->done())) {
    flights_.front().work->wait();
    const Flight flight = std::move(flights_.front());
    flights_.pop_front();
    std::int64_t offset = 0;
    for (const int i : buckets_[flight.bucket].parameters) {
      const Parameter& parameter = parameters_[i];
      const at::Tensor part = flight.part.narrow(0, offset, parameter.divided->per_rank);
      at::Tensor& sum = parameter.slot->sum;
      if (flight.microbatch < parameter.zeroed_in) {
        // A later microbatch has set it to zero.
      } else if (sum.defined()) {
        sum.add_(part);
      } else {
        sum = part.clone();
      }
      offset += parameter.divided->per_rank;
    }
  }
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
void ShardReducer::notice_zeroed(Parameter& parameter) {
  const at::Tensor& gradient = whole_gradient(parameter);
  if (parameter.seen && !is_gradient_handle(gradient) &&
      parameter.seen->_unsafe_get_target() != gradient.unsafeGetTensorImpl()) {
    forget(parameter, /*set_to_none=*/true);
    see(parameter);
  }
}

/// What earlier steps and earlier microbatches of this one have left.
void ShardReducer::forget(Parameter& parameter, bool set_to_none) {
  GradientSlot& slot = *parameter.slot;
  const bool any = slot.part.grad().defined() || (slot.reached && slot.sum.defined());
  slot.part.mutable_grad() =
      any && !set_to_none ? at::zeros_like(slot.part.detach()) : at::Tensor();
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
