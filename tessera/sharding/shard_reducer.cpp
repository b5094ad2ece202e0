#include "tessera/sharding/shard_reducer.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include "tessera/autograd/addition_hook.h"
#include "tessera/base/error.h"
#include "tessera/context/agreement.h"
#include "tessera/tensor/value.h"

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
    parameter.reached = false;
    parameter.first_done = -1;
    // Backward adds to a tensor of its own; what was added outside of steps goes along with it.
    if (!has_whole_gradient(parameter)) {
      whole_gradient(parameter) = std::exchange(parameter.slot->extra, at::Tensor());
    }
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

void ShardReducer::launch(std::size_t index, bool zeros) {
  const at::NoGradGuard no_grad;
  const Bucket& bucket = buckets_[index];
  const int ranks = shards_.size();
  const at::Tensor& like = parameters_[bucket.parameters[0]].divided->part;
  Flight flight{index, {}, {}, nullptr};
  flight.flat = at::empty({ranks, bucket.part_elements}, like.options().requires_grad(false));
  flight.part = at::empty({bucket.part_elements}, flight.flat.options());
  std::int64_t offset = 0;
  for (const int i : bucket.parameters) {
    Parameter& parameter = parameters_[i];
    const std::int64_t per_rank = parameter.divided->per_rank;
    at::Tensor& gradient = whole_gradient(parameter);
    const bool given = !zeros && has_whole_gradient(parameter);
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
      parameter.reached = true;
      gradient = at::Tensor();
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
      if (sum.defined()) {
        sum.add_(part);
      } else {
        sum = part.clone();
      }
      offset += parameter.divided->per_rank;
    }
  }
}

bool ShardReducer::finish(const std::optional<std::string>& failure) {
  const at::NoGradGuard no_grad;
  active_ = false;
  // One agreement, any rank's yes is a yes: failed, backward, which buckets have late parts, which
  // parameters were reached.
  at::Tensor flags =
      at::zeros({static_cast<std::int64_t>(2 + buckets_.size() + parameters_.size())}, at::kByte);
  auto* flag = flags.data_ptr<std::uint8_t>();
  auto* late = flag + 2;
  auto* reached = late + buckets_.size();
  flag[0] = failure.has_value() ? 1 : 0;
  flag[1] = backward_ ? 1 : 0;
  const bool all_left = launching_ == microbatches_;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = parameters_[i];
    const bool waits = has_whole_gradient(parameter) && parameter.bucket >= 0;
    reached[i] = parameter.reached || waits ? 1 : 0;
    if (waits && all_left) {
      late[parameter.bucket] = 1;
    }
  }
  control_.all_reduce(flags, comm::ReduceOp::kMax);
  const bool backward = flag[1] != 0;
  if (backward) {
    launch_through(microbatches_ - 1);
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      if (late[i] != 0) {
        launch(i, false);
      }
    }
  }
  land(true);
  if (flag[0] == 0 && backward) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      Parameter& parameter = parameters_[i];
      parameter.slot->reached = parameter.slot->reached || reached[i] != 0;
      if (reduce_) {
        average(parameter);
      }
    }
    learn_order();
  }
  for (Parameter& parameter : parameters_) {
    show_handle(parameter);
  }
  if (flag[0] != 0) {
    throw_first_problem<UserError>(world_, control_, failure);
  }
  return backward;
}

/// The sum becomes an average, and is added to the average that was there.
void ShardReducer::average(Parameter& parameter) {
  GradientSlot& slot = *parameter.slot;
  at::Tensor sum = std::exchange(slot.sum, at::Tensor());
  if (!std::exchange(slot.reached, false) || !sum.defined()) {
    return;
  }
  if (replicas_.size() == 1) {
    sum.mul_(options_.scale);
  } else {
    replicas_.scaled_sum_async(sum, options_.scale)->wait();
  }
  at::Tensor& gradient = slot.part.mutable_grad();
  gradient = gradient.defined() ? gradient + sum : sum;
}

void ShardReducer::learn_order() {
  if (learnt_) {
    return;
  }
  std::vector<std::int64_t> order(parameters_.size());
  std::iota(order.begin(), order.end(), 0);
  const auto position = [&](std::int64_t index) {
    const int done = parameters_[index].first_done;
    return done < 0 ? completed_ : done; // a parameter that was never reached comes last
  };
  std::stable_sort(
      order.begin(), order.end(), [&](auto a, auto b) { return position(a) < position(b); });
  // All ranks take the first one's order.
  const auto agreed =
      unpack<std::vector<std::int64_t>>(comm::broadcast_object(world_, control_, pack(order), 0));
  make_buckets(std::vector<int>(agreed.begin(), agreed.end()));
  learnt_ = true;
}

void ShardReducer::average_rest() {
  const at::NoGradGuard no_grad;
  settle();
  // One agreement: which parameters have a gradient that no step took, which have sums, and which
  // have an average.
  const std::size_t count = parameters_.size();
  at::Tensor flags = at::zeros({static_cast<std::int64_t>(3 * count + 1)}, at::kByte);
  auto* whole = flags.data_ptr<std::uint8_t>();
  auto* sums = whole + count;
  auto* averages = sums + count;
  for (std::size_t i = 0; i < count; ++i) {
    const Parameter& parameter = parameters_[i];
    const GradientSlot& slot = *parameter.slot;
    whole[i] = has_whole_gradient(parameter) ? 1 : 0;
    sums[i] = (slot.reached && slot.sum.defined()) || slot.extra.defined() ? 1 : 0;
    averages[i] = is_gradient_handle(parameter.divided->whole.grad()) ? 1 : 0;
  }
  control_.all_reduce(flags, comm::ReduceOp::kMax);
  for (std::size_t i = 0; i < count; ++i) {
    Parameter& parameter = parameters_[i];
    if (whole[i] != 0 && averages[i] != 0) {
      throw UserError(
          str("the gradient of the parameter '",
              parameter.divided->name,
              "' was replaced on some ranks and kept on others, and each of them has a part of it "
              "(sharded_data_parallel_degree); do the same on all ranks"));
    }
    if (whole[i] == 0 && sums[i] == 0) {
      continue;
    }
    GradientSlot& slot = *parameter.slot;
    const DividedParameter& divided = *parameter.divided;
    at::Tensor rows =
        at::zeros({divided.per_rank * shards_.size()}, divided.part.options().requires_grad(false));
    const at::Tensor own = has_whole_gradient(parameter) ? whole_gradient(parameter) : slot.extra;
    if (own.defined()) {
      rows.narrow(0, 0, own.numel()).copy_(own.detach().reshape({-1}));
    }
    at::Tensor part = at::empty({divided.per_rank}, rows.options());
    shards_.reduce_scatter(part, rows, comm::ReduceOp::kSum);
    slot.sum = slot.sum.defined() && slot.reached ? slot.sum + part : part;
    slot.extra = at::Tensor();
    slot.reached = true;
    if (has_whole_gradient(parameter)) {
      whole_gradient(parameter) = at::Tensor();
    }
    average(parameter);
    show_handle(parameter);
  }
}

} // namespace tessera::sharding
