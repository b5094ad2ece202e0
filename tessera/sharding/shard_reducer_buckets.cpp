// Buckets: what is in them, when they leave, and what becomes of them when they arrive.
#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/stopwatch.h"
#include "tessera/sharding/shard_reducer.h"

namespace tessera::sharding {

namespace {

constexpr std::size_t kMostFlights = 2; // buckets on their way
constexpr std::chrono::microseconds kPause{100};

} // namespace

/// Whether a bucket of its own saves the copy of a gradient and leaves earlier, and costs a
/// collective that is no matter beside its bytes.
bool ShardReducer::travels_alone(const Parameter& parameter) const {
  const DividedParameter& divided = *parameter.divided;
  const std::int64_t elements = divided.per_rank * shards_.size();
  return elements >= kAloneElements && elements == divided.whole.numel();
}

void ShardReducer::make_buckets(const std::vector<int>& order) {
  order_ = order;
  buckets_.clear();
  Bucket shared; // that the next small parameter joins
  const auto close = [&](Bucket& bucket) {
    if (bucket.parameters.empty()) {
      return;
    }
    for (const int index : bucket.parameters) {
      parameters_[index].bucket = static_cast<int>(buckets_.size());
    }
    buckets_.push_back(std::exchange(bucket, Bucket()));
  };
  const auto add = [&](Bucket& bucket, int index) {
    parameters_[index].offset = bucket.part_elements;
    bucket.parameters.push_back(index);
    bucket.part_elements += parameters_[index].divided->per_rank;
  };
  const auto fits = [&](const Bucket& bucket, const DividedParameter& divided) {
    return bucket.parameters.empty() ||
           (parameters_[bucket.parameters[0]].divided->part.scalar_type() ==
                divided.part.scalar_type() &&
            (bucket.part_elements + divided.per_rank) * shards_.size() <= options_.bucket_elements);
  };
  for (const int index : order) {
    Parameter& parameter = parameters_[index];
    parameter.bucket = -1;
    if (!parameter.trainable) {
      continue;
    }
    if (travels_alone(parameter)) {
      Bucket own;
      add(own, index);
      close(own);
      continue;
    }
    if (!fits(shared, *parameter.divided)) {
      close(shared);
    }
    add(shared, index);
  }
  close(shared);
}

/// Whether the next round of a bucket has all that it waits for.
bool ShardReducer::is_ready(const Bucket& bucket) const {
  if (!overlaps()) {
    return launching_ == microbatch_ && bucket.missing <= 0;
  }
  return launching_ < microbatches_ &&
         std::all_of(bucket.parameters.begin(), bucket.parameters.end(), [&](int index) {
           return parameters_[index].count >= (launching_ + 1) * parameters_[index].expected;
         });
}

/// Every bucket of the microbatches up to this one, in order.
void ShardReducer::launch_through(int microbatch) {
  while (launching_ <= microbatch) {
    while (next_bucket_ < buckets_.size()) {
      launch(next_bucket_++);
    }
    ++launching_;
    next_bucket_ = 0;
  }
}

void ShardReducer::launch_ready() {
  if (!overlaps()) {
    launch_through(microbatch_ - 1);
  }
  while (next_bucket_ < buckets_.size() && is_ready(buckets_[next_bucket_])) {
    launch(next_bucket_++);
    if (overlaps() && next_bucket_ == buckets_.size()) {
      ++launching_;
      next_bucket_ = 0;
    }
  }
}

at::TensorOptions ShardReducer::options_of_sum(const at::Tensor& part) const {
  return options_.f32_sums || part.scalar_type() == at::kHalf ? f32_sum_options(part)
                                                              : part.options().requires_grad(false);
}

/// What goes to a rank of the shard group, in the bucket that leaves next.
at::Tensor ShardReducer::slice_of(const Parameter& parameter, int rank) const {
  const at::Tensor& flat = buckets_[parameter.bucket].flat;
  return flat[rank].narrow(0, parameter.offset, parameter.divided->per_rank);
}

/// Whether a gradient is all of its bucket and nobody else's, so that it can leave as it is.
bool ShardReducer::is_bucket(const Bucket& bucket, const at::Tensor& gradient) const {
  return bucket.parameters.size() == 1 && !bucket.flat.defined() && gradient.use_count() == 1 &&
         gradient.storage().use_count() == 1 && gradient.is_contiguous() &&
         gradient.numel() == bucket.part_elements * shards_.size() &&
         gradient.scalar_type() ==
             options_of_sum(parameters_[bucket.parameters[0]].divided->part).dtype();
}

at::Tensor ShardReducer::new_flat(Bucket& bucket) const {
  if (bucket.used_flat.defined()) {
    return std::exchange(bucket.used_flat, at::Tensor());
  }
  return at::empty(
      {shards_.size(), bucket.part_elements},
      options_of_sum(parameters_[bucket.parameters[0]].divided->part));
}

void ShardReducer::pack(Parameter& parameter, const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  Bucket& bucket = buckets_[parameter.bucket];
  if (is_bucket(bucket, gradient)) {
    bucket.flat = gradient.detach().view({shards_.size(), bucket.part_elements});
    parameter.packed = true;
    return;
  }
  if (!bucket.flat.defined()) {
    bucket.flat = new_flat(bucket);
  }
  const std::int64_t per_rank = parameter.divided->per_rank;
  const at::Tensor rows = gradient.detach().reshape({-1});
  for (int rank = 0; rank < shards_.size(); ++rank) {
    const at::Tensor to = slice_of(parameter, rank);
    const std::int64_t begin = std::min(per_rank * rank, rows.numel());
    const std::int64_t count = std::min(per_rank, rows.numel() - begin);
    if (parameter.packed) {
      to.narrow(0, 0, count).add_(rows.narrow(0, begin, count));
    } else {
      to.narrow(0, 0, count).copy_(rows.narrow(0, begin, count));
      to.narrow(0, count, per_rank - count).zero_();
    }
  }
  parameter.packed = true;
}

/// The bucket's copy is all that stays of a gradient, so that a rank holds one bucket and the
/// gradients of the layer whose backward runs.
void ShardReducer::take_gradient(Parameter& parameter) {
  at::Tensor& gradient = whole_gradient(parameter);
  if (!has_whole_gradient(parameter) && parameter.slot->extra.defined()) {
    gradient = std::exchange(parameter.slot->extra, at::Tensor());
  }
  if (has_whole_gradient(parameter)) {
    pack(parameter, gradient);
    gradient = at::Tensor();
    see(parameter);
  }
}

void ShardReducer::take_along(Parameter& parameter) {
  notice_zeroed(parameter);
  if (launching_ < parameter.zeroed_in) {
    return; // what is here is of a later microbatch
  }
  const bool last = !active_ && launching_ >= microbatches_ - 1;
  while (!parameter.rounds.empty()) {
    const at::Tensor gradient = std::move(parameter.rounds.front());
    parameter.rounds.pop_front();
    if (gradient.defined()) { // a node may have added nothing
      pack(parameter, gradient);
    }
    if (!last) {
      return;
    }
  }
  if (options_.microbatches != Microbatches::kOrdered || !active_) {
    take_gradient(parameter);
  }
}

/// Keeps this rank from collecting the gradients of a whole microbatch that its peers are behind
/// with. A peer whose flow reaches nothing sends at the end of its step, and a peer that has failed
/// does not send at all, so the wait ends by itself; each time that it does, the next one is half
/// as long. In a pipeline other ranks may wait for this one meanwhile, so there it does not stop.
void ShardReducer::await_room() {
  land(false);
  if (overlaps() || !active_ || patience_.count() == 0) {
    return;
  }
  const auto end = Clock::now() + patience_;
  while (flights_.size() >= kMostFlights) {
    if (Clock::now() >= end) {
      patience_ =
          patience_ < std::chrono::milliseconds(1) ? std::chrono::microseconds(0) : patience_ / 2;
      return;
    }
    std::this_thread::sleep_for(kPause);
    land(false);
  }
}

void ShardReducer::launch(std::size_t index) {
  const at::NoGradGuard no_grad;
  await_room();
  Bucket& bucket = buckets_[index];
  for (const int i : bucket.parameters) {
    take_along(parameters_[i]);
  }
  if (!bucket.flat.defined()) {
    bucket.flat = new_flat(bucket);
  }
  for (const int i : bucket.parameters) {
    Parameter& parameter = parameters_[i];
    if (std::exchange(parameter.packed, false)) {
      parameter.reached_in = launching_;
      continue;
    }
    for (int rank = 0; rank < shards_.size(); ++rank) {
      slice_of(parameter, rank).zero_();
    }
  }
  if (options_.weight != 1) {
    bucket.flat.mul_(options_.weight);
  }
  Flight flight{index, launching_, std::exchange(bucket.flat, at::Tensor()), {}, nullptr};
  flight.part = bucket.used_part.defined()
                    ? std::exchange(bucket.used_part, at::Tensor())
                    : at::empty({bucket.part_elements}, flight.flat.options());
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
    take_part(flight);
    Bucket& bucket = buckets_[flight.bucket];
    if (active_ && bucket.parameters.size() > 1) {
      bucket.used_flat = flight.flat;
      bucket.used_part = flight.part;
    }
  }
}

void ShardReducer::take_part(const Flight& flight) {
  const std::vector<int>& parameters = buckets_[flight.bucket].parameters;
  for (const int i : parameters) {
    const Parameter& parameter = parameters_[i];
    const at::Tensor part = flight.part.narrow(0, parameter.offset, parameter.divided->per_rank);
    at::Tensor& sum = parameter.slot->sum;
    if (flight.microbatch < parameter.zeroed_in) {
      // A later microbatch has set it to zero.
    } else if (sum.defined()) {
      sum.add_(part);
    } else {
      sum = parameters.size() == 1 ? part : part.clone();
    }
  }
}

} // namespace tessera::sharding
