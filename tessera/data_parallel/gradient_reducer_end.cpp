// The end of a step: what the ranks agree on, and the gradients that no bucket took along.
#include <algorithm>
#include <map>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/base/error.h"
#include "tessera/comm/equal_number.h"
#include "tessera/context/agreement.h"
#include "tessera/data_parallel/completion_order.h"
#include "tessera/data_parallel/gradient_reducer.h"
#include "tessera/data_parallel/sparse_sum.h"

namespace tessera::data_parallel {

using comm::EqualNumber;

/// What one agreement at the end of a step tells every rank, as bytes: any rank's yes is a yes.
struct GradientReducer::EndOfStep {
  EndOfStep(std::size_t buckets, std::size_t parameters)
      : flags(at::zeros(
            {static_cast<std::int64_t>(3 + buckets + 2 * parameters + 2 * EqualNumber::kBytes)},
            at::kByte)),
        failed(flags.data_ptr<std::uint8_t>()[0]),
        backward(flags.data_ptr<std::uint8_t>()[1]),
        refused(flags.data_ptr<std::uint8_t>()[2]),
        late(flags.data_ptr<std::uint8_t>() + 3),
        has_dense(late + buckets),
        has_sparse(has_dense + parameters),
        rows(has_sparse + parameters),
        agreed(rows + EqualNumber::kBytes) {}

  at::Tensor flags;
  std::uint8_t& failed;
  std::uint8_t& backward;
  std::uint8_t& refused; // an addition; it counts where the step has a backward
  std::uint8_t* late; // by bucket
  // By parameter: what kinds of gradient it has.
  std::uint8_t* has_dense;
  std::uint8_t* has_sparse;
  // Numbers.
  std::uint8_t* rows; // of this rank's batch
  std::uint8_t* agreed;
};

bool GradientReducer::finish(const std::optional<std::string>& failure) {
  active_ = false;
  std::for_each(parameters_.begin(), parameters_.end(), [&](auto& p) { notice_zeroed(p); });
  const at::NoGradGuard no_grad;
  // Asked on every rank: another one's backward has this rank's gradients averaged.
  const auto refusal = reduce_ ? refused_addition() : std::nullopt;
  const auto unused = reduce_ && options_.all_used ? unused_parameter() : std::nullopt;
  EndOfStep end(buckets_.size(), parameters_.size());
  end.failed = failure ? 1 : 0;
  end.backward = backward_ ? 1 : 0;
  end.refused = refusal ? 1 : 0;
  EqualNumber::say(end.rows, static_cast<std::uint64_t>(rows_));
  EqualNumber::say(end.agreed, agreed_);
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    end.late[i] = buckets_[i].late ? 1 : 0;
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = parameters_[i];
    const at::Tensor& gradient = parameter.tensor.grad();
    const bool sparse = gradient.defined() && gradient.is_sparse();
    end.has_dense[i] = parameter.travels || (gradient.defined() && !sparse) ? 1 : 0;
    end.has_sparse[i] = sparse ? 1 : 0;
  }
  const bool zeros = failure || refusal;
  if (hook_ != nullptr && reduce_ && backward_) {
    launch_rest(zeros); // another rank's hook may wait for them in its backward
  }
  control_.all_reduce(end.flags, comm::ReduceOp::kMax);
  const bool reduce = reduce_ && end.backward != 0;
  rows_differ_ = end.backward != 0 && EqualNumber::differs(end.rows);
  agreed_differs_ = EqualNumber::differs(end.agreed);
  if (reduce) {
    launch_rest(zeros);
  }
  end_averages();
  if (end.failed != 0 || (reduce && end.refused != 0)) {
    give_up();
    throw_first_problem<UserError>(world_, control_, failure || !reduce ? failure : refusal);
  }
  if (reduce) {
    take_averages(end);
    problem_ = problem_ ? problem_ : unused;
  }
  add_averages_back();
  if (end.backward != 0) {
    learn_order();
    for (Parameter& parameter : parameters_) {
      parameter.expected = parameter.count;
    }
  }
  return end.backward != 0;
}

/// What `all_used` finds. A gradient that grew in an earlier pass has been reached by that.
std::optional<std::string> GradientReducer::unused_parameter() const {
  std::string first;
  int others = -1;
  for (const Parameter& parameter : parameters_) {
    if (parameter.trainable && parameter.count == 0 && !parameter.grown) {
      first = others < 0 ? parameter.name : first;
      ++others;
    }
  }
  if (others < 0) {
    return std::nullopt;
  }
  return str(
      "rank ",
      world_.rank(),
      ": no backward has reached the parameter '",
      first,
      "'",
      others > 0 ? str(" and ", others, " more") : "",
      ", and ModelOptions::find_unused_parameters is false; leave the option out where a step may "
      "pass parameters over, or freeze them (requires_grad)");
}

/// The values mean nothing, but gradients of the step stay defined.
void GradientReducer::give_up() {
  for (Bucket& bucket : buckets_) {
    if (bucket.left) {
      hand_back(bucket);
    }
  }
  add_averages_back();
}

/// Launches the buckets that have not left.
void GradientReducer::launch_rest(bool zeros) {
  for (; next_bucket_ < buckets_.size(); ++next_bucket_) {
    launch(buckets_[next_bucket_], zeros);
  }
}

void GradientReducer::end_averages() {
  for (Bucket& bucket : buckets_) {
    if (bucket.work != nullptr) {
      end_average(*bucket.work, bucket.flat, bucket.owner);
    }
  }
}

void GradientReducer::take_averages(const EndOfStep& end) {
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    if (end.late[i] != 0) {
      send_late_parts(buckets_[i]);
    }
  }
  // A gradient that any rank has, all have. The sparse parts are kept apart until the buckets have
  // given back the dense ones.
  std::vector<at::Tensor> sparse(parameters_.size());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    const at::Tensor& gradient = parameter.tensor.grad();
    if (gradient.defined() && gradient.is_sparse()) {
      sparse[i] = gradient;
      parameter.tensor.mutable_grad() = at::Tensor();
    }
    parameter.travels = end.has_dense[i] != 0;
  }
  for (Bucket& bucket : buckets_) {
    hand_back(bucket);
  }
  bool changed = false;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& parameter = parameters_[i];
    const bool has_sparse = end.has_sparse[i] != 0;
    const bool apart = parameter.trainable && !in_bucket(static_cast<int>(i));
    if (apart && end.has_dense[i] != 0) {
      average_in_place({&parameter});
    }
    if (has_sparse) {
      add_sparse_average(parameter, sparse[i]);
    }
    parameter.travels = false;
    changed = changed || (has_sparse && !parameter.by_itself);
    parameter.by_itself = parameter.by_itself || has_sparse;
  }
  if (changed) {
    make_buckets(order_);
  }
}

/// Adds the average of the ranks' sparse gradients to the average of their dense ones, if any.
void GradientReducer::add_sparse_average(Parameter& parameter, const at::Tensor& own) {
  const bool weighted = own.defined() && options_.weight != 1;
  const at::Tensor average = sparse_sum(
      group_,
      weighted ? own * options_.weight : own,
      parameter.tensor.sizes(),
      options_of_sum(parameter.tensor),
      scale());
  at::Tensor& gradient = parameter.tensor.mutable_grad();
  parameter.grown = false;
  if (is_elsewhere(parameter.owner)) {
    gradient = at::Tensor();
    return;
  }
  gradient = gradient.defined() ? gradient + average : average;
  parameter.average = WeakGradient(gradient.getIntrusivePtr());
}

bool GradientReducer::is_unaveraged(const Parameter& parameter) const {
  const at::Tensor& gradient = parameter.tensor.grad();
  return gradient.defined() && (parameter.grown || parameter.average._unsafe_get_target() !=
                                                       gradient.unsafeGetTensorImpl());
}

// Zeros are an average: zero_grad(false) makes new ones, which a step need not add to.
std::string GradientReducer::unaveraged_gradient() const {
  const auto found = std::find_if(parameters_.begin(), parameters_.end(), [&](const auto& p) {
    return is_unaveraged(p) && !is_all_zero(p.tensor.grad());
  });
  return found == parameters_.end() ? std::string() : found->name;
}

void GradientReducer::average_rest() {
  const at::NoGradGuard no_grad;
  // One agreement: which gradients need averaging, and which of them are dense or sparse anywhere.
  const std::size_t count = parameters_.size();
  const auto refused = refused_gradient();
  at::Tensor flags = at::zeros({static_cast<std::int64_t>(3 * count + 1)}, at::kByte);
  auto* unaveraged = flags.data_ptr<std::uint8_t>();
  auto* dense = unaveraged + count;
  auto* sparse = dense + count;
  for (std::size_t i = 0; i < count; ++i) {
    const at::Tensor& gradient = parameters_[i].tensor.grad();
    unaveraged[i] = is_unaveraged(parameters_[i]) ? 1 : 0;
    dense[i] = gradient.defined() && !gradient.is_sparse() ? 1 : 0;
    sparse[i] = gradient.defined() && gradient.is_sparse() ? 1 : 0;
  }
  auto& any_refused = flags.data_ptr<std::uint8_t>()[3 * count];
  any_refused = refused ? 1 : 0;
  control_.all_reduce(flags, comm::ReduceOp::kMax);
  if (any_refused != 0) {
    throw_first_problem<UserError>(world_, control_, refused);
  }
  std::map<std::pair<at::ScalarType, int>, std::vector<Parameter*>> by_type; // and owner
  std::vector<std::pair<Parameter*, at::Tensor>> sparse_parts;
  for (std::size_t i = 0; i < count; ++i) {
    Parameter& parameter = parameters_[i];
    if (unaveraged[i] == 0) {
      continue;
    }
    // What only the owner has is not part of the sum.
    if (is_here(parameter.owner) && parameter.tensor.grad().defined() &&
        !is_unaveraged(parameter)) {
      std::swap(parameter.base, parameter.tensor.mutable_grad());
    }
    count_as_average(parameter);
    if (sparse[i] != 0) {
      at::Tensor& gradient = parameter.tensor.mutable_grad();
      const bool mine = gradient.defined() && gradient.is_sparse();
      sparse_parts.emplace_back(&parameter, mine ? std::exchange(gradient, {}) : at::Tensor());
    }
    if (dense[i] != 0) {
      by_type[{parameter.tensor.scalar_type(), parameter.owner}].push_back(&parameter);
    }
  }
  for (const auto& [type, list] : by_type) {
    average_in_place(list);
  }
  for (const auto& [parameter, own] : sparse_parts) {
    add_sparse_average(*parameter, own);
  }
  add_averages_back();
}

/// An average that a script has changed, which the ranks of the group have alike, stays what it is
/// in a sum that is multiplied by `scale`.
void GradientReducer::count_as_average(const Parameter& parameter) const {
  const at::Tensor& gradient = parameter.tensor.grad();
  const double factor = 1 / (scale() * group_.size());
  if (parameter.owner < 0 && !parameter.grown && gradient.defined() && factor != 1) {
    gradient.detach().mul_(factor);
  }
}

/// Parameters of one dtype and owner travel in one message.
void GradientReducer::average_in_place(const std::vector<Parameter*>& list) {
  std::vector<at::Tensor> rows;
  for (Parameter* parameter : list) {
    at::Tensor& gradient = parameter->tensor.mutable_grad();
    const at::TensorOptions options = options_of_sum(parameter->tensor);
    if (!gradient.defined()) {
      gradient = at::zeros_like(parameter->tensor.detach(), options);
    } else if (gradient.dtype() != options.dtype()) {
      gradient = gradient.to(options.dtype()); // the script's own
    }
    rows.push_back(gradient.detach().reshape({-1}));
  }
  const at::Tensor flat = at::cat(rows);
  const int owner = list.front()->owner;
  end_average(*start_average(flat, owner), flat, owner);
  std::int64_t at = 0;
  for (Parameter* parameter : list) {
    if (is_elsewhere(owner)) {
      parameter->tensor.mutable_grad() = at::Tensor();
      parameter->grown = false;
      continue;
    }
    const at::Tensor& gradient = parameter->tensor.grad();
    gradient.detach().copy_(flat.narrow(0, at, gradient.numel()).view(gradient.sizes()));
    at += gradient.numel();
    parameter->grown = false;
    parameter->average = WeakGradient(gradient.getIntrusivePtr());
  }
}

void GradientReducer::learn_order() {
  if (learnt_) {
    return;
  }
  std::vector<int> first_done;
  for (const Parameter& parameter : parameters_) {
    first_done.push_back(parameter.first_done);
  }
  make_buckets(agreed_completion_order(world_, control_, first_done));
  learnt_ = true;
}

} // namespace tessera::data_parallel
