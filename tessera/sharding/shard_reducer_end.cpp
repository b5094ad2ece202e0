// The end of a step: what the ranks agree on, and how sums become averages.
#include <algorithm>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/context/agreement.h"
#include "tessera/data_parallel/completion_order.h"
#include "tessera/sharding/shard_reducer.h"

namespace tessera::sharding {

/// Whether a bucket has left for the last time, before the end of the step told it to.
bool ShardReducer::has_left(int bucket) const {
  return launching_ >= microbatches_ ||
         (launching_ == microbatches_ - 1 && bucket < static_cast<int>(next_bucket_));
}

/// Whether this rank has what no bucket took along.
bool ShardReducer::waits(const Parameter& parameter) const {
  return parameter.bucket >= 0 &&
         (parameter.packed || !parameter.rounds.empty() || has_whole_gradient(parameter) ||
          parameter.slot->extra.defined());
}

bool ShardReducer::finish(const std::optional<std::string>& given) {
  const at::NoGradGuard no_grad;
  active_ = false;
  std::optional<std::string> failure = given;
  for (const Parameter& parameter : parameters_) {
    if (overlaps() && !failure && is_replaced(parameter)) {
      failure = text_of_zeroing(parameter.divided->name);
    }
  }
  // One agreement, any rank's yes is a yes: failed, backward, which buckets have late parts, which
  // parameters were reached; and the first and the last microbatch that set each to zero.
  const std::size_t count = parameters_.size();
  at::Tensor flags =
      at::zeros({static_cast<std::int64_t>(2 + buckets_.size() + 3 * count)}, at::kInt);
  auto* flag = flags.data_ptr<int>();
  auto* late = flag + 2;
  auto* reached = late + buckets_.size();
  auto* zeroed = reached + count;
  auto* less_zeroed = zeroed + count;
  flag[0] = failure.has_value() ? 1 : 0;
  flag[1] = backward_ ? 1 : 0;
  for (std::size_t i = 0; i < count; ++i) {
    const Parameter& parameter = parameters_[i];
    const bool rest = waits(parameter);
    const bool left = parameter.reached_in >= std::max(parameter.zeroed_in, 0);
    reached[i] = left || rest ? 1 : 0;
    zeroed[i] = parameter.zeroed_in;
    less_zeroed[i] = -parameter.zeroed_in;
    if (rest && has_left(parameter.bucket)) {
      late[parameter.bucket] = 1;
    }
  }
  control_.all_reduce(flags, comm::ReduceOp::kMax);
  const bool backward = flag[1] != 0;
  if (backward) {
    launch_through(microbatches_ - 1);
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      if (late[i] != 0) {
        launch(i);
      }
    }
  }
  land(true);
  for (Bucket& bucket : buckets_) {
    bucket.used_flat = at::Tensor();
    bucket.used_part = at::Tensor();
  }
  std::size_t differs = 0; // the first parameter that was not set to zero alike
  while (differs < count && zeroed[differs] == -less_zeroed[differs]) {
    ++differs;
  }
  if (flag[0] == 0 && differs == count && backward) {
    for (std::size_t i = 0; i < count; ++i) {
      Parameter& parameter = parameters_[i];
      parameter.slot->reached = parameter.slot->reached || reached[i] != 0;
      if (reduce_) {
        average(parameter);
      }
    }
    learn_order();
    if (overlaps()) {
      expect_mean_additions();
    }
  }
  for (Parameter& parameter : parameters_) {
    show_handle(parameter);
  }
  if (flag[0] != 0) {
    throw_first_problem<UserError>(world_, control_, failure);
  }
  if (differs != count) {
    throw UserError(
        str("the gradient of the parameter '",
            parameters_[differs].divided->name,
            "' was set to zero inside of a step by some ranks, and by others in another microbatch "
            "or not at all, and each of them has a part of it (sharded_data_parallel_degree); call "
            "zero_grad before the step, or optimizer.zero_grad() inside of it on all ranks alike"));
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
  if (!options_.f32_sums) {
    sum = sum.to(slot.part.scalar_type());
  }
  at::Tensor& gradient = slot.part.mutable_grad();
  gradient = gradient.defined() ? gradient + sum : sum;
  slot.zero = false;
}

void ShardReducer::learn_order() {
  if (learnt_) {
    return;
  }
  std::vector<int> first_done;
  for (const Parameter& parameter : parameters_) {
    first_done.push_back(parameter.first_done);
  }
  make_buckets(data_parallel::agreed_completion_order(world_, control_, first_done));
  learnt_ = true;
}

void ShardReducer::average_rest() {
  const at::NoGradGuard no_grad;
  settle();
  for (const Parameter& parameter : parameters_) {
    fill_zero(*parameter.slot);
  }
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
    at::Tensor rows = at::zeros({divided.per_rank * shards_.size()}, options_of_sum(divided.part));
    const at::Tensor own = has_whole_gradient(parameter) ? whole_gradient(parameter) : slot.extra;
    if (own.defined()) {
      rows.narrow(0, 0, own.numel()).copy_(own.detach().reshape({-1}));
    }
    rows.mul_(options_.weight);
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
