#include "tessera/data_parallel/gradient_reducer.h"

#include <algorithm>
#include <map>
#include <numeric>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include "tessera/autograd/weight_gradient.h"
#include "tessera/base/error.h"
#include "tessera/tensor/value.h"

namespace tessera::data_parallel {

GradientReducer::GradientReducer(
    comm::World& world,
    comm::ProcessGroup& group,
    comm::ProcessGroup& control,
    std::vector<std::pair<std::string, at::Tensor>> parameters,
    Options options)
    : world_(world), group_(group), control_(control), options_(options) {
  for (auto& [name, tensor] : parameters) {
    Parameter& parameter = parameters_.emplace_back();
    parameter.name = name;
    parameter.tensor = tensor;
  }
  find_trainable();
}

GradientReducer::~GradientReducer() {
  for (const Parameter& parameter : parameters_) {
    if (parameter.accumulator != nullptr) {
      parameter.accumulator->del_post_hook(parameter.hook);
    }
  }
}

void GradientReducer::hook(int index) {
  Parameter& parameter = parameters_[index];
  parameter.accumulator = torch::autograd::impl::grad_accumulator(parameter.tensor);
  parameter.hook = parameter.accumulator->add_post_hook(std::make_unique<AdditionHook>(
      parameter.accumulator.get(),
      [this, index] { counted(index); },
      [this, index] { return place(index); },
      AdditionHook::OnOrder{
          [this, index] { complete(index); }, [this, index] { before_late(index); }}));
}

// A script may freeze parameters and thaw them again between steps.
void GradientReducer::find_trainable() {
  bool changed = false;
  for (Parameter& parameter : parameters_) {
    const bool trainable = parameter.tensor.requires_grad();
    changed = changed || trainable != parameter.trainable;
    parameter.trainable = trainable;
    if (trainable && parameter.accumulator == nullptr) {
      hook(static_cast<int>(&parameter - parameters_.data()));
    }
  }
  if (!changed) {
    return;
  }
  // Until the next step shows better: last registered, first complete.
  std::vector<int> order(parameters_.size());
  std::iota(order.rbegin(), order.rend(), 0);
  make_buckets(order);
  learnt_ = false;
}

void GradientReducer::make_buckets(const std::vector<int>& order) {
  buckets_.clear();
  bucket_of_.assign(parameters_.size(), -1);
  std::int64_t bytes = 0;
  for (const int index : order) {
    if (!parameters_[index].trainable) {
      continue;
    }
    const at::Tensor& tensor = parameters_[index].tensor;
    const std::int64_t size = tensor.numel() * tensor.element_size();
    const bool fits =
        !buckets_.empty() &&
        parameters_[buckets_.back().parameters[0]].tensor.scalar_type() == tensor.scalar_type() &&
        bytes + size <= options_.bucket_bytes;
    if (!fits) {
      buckets_.emplace_back();
      bytes = 0;
    }
    Bucket& bucket = buckets_.back();
    bucket.parameters.push_back(index);
    bucket.offsets.push_back(bucket.elements);
    bucket.elements += tensor.numel();
    bucket_of_[index] = static_cast<int>(buckets_.size()) - 1;
    bytes += size;
  }
}

void GradientReducer::begin(bool reduce) {
  reduce_ = reduce;
  active_ = true;
  backward_ = false;
  next_bucket_ = 0;
  completed_ = 0;
  find_trainable();
  for (Parameter& parameter : parameters_) {
    parameter.count = 0;
    parameter.travels = false;
    parameter.first_done = -1;
    parameter.grown = parameter.grown && parameter.tensor.grad().defined();
  }
  for (Bucket& bucket : buckets_) {
    bucket.late = false;
    bucket.work = nullptr;
    // Parameters without a gradient in the step before do not hold up their
    // bucket; an order says of each parameter when it is complete.
    bucket.missing = static_cast<int>(
        std::count_if(bucket.parameters.begin(), bucket.parameters.end(), [&](int index) {
          return options_.ordered || parameters_[index].expected > 0;
        }));
  }
}

void GradientReducer::counted(int index) {
  Parameter& parameter = parameters_[index];
  parameter.grown = parameter.grown || !active_ || !reduce_;
  if (!active_ || !parameter.trainable) {
    return; // a backward of the user's own, outside a step
  }
  ++parameter.count;
  backward_ = true;
  Bucket& bucket = buckets_[bucket_of_[index]];
  if (bucket.work != nullptr) {
    bucket.late = true;
  }
  if (!learnt_) {
    parameter.first_done = completed_++; // the last addition counts
  } else if (!options_.ordered && parameter.count == parameter.expected) {
    no_longer_missing(bucket);
  }
}

void GradientReducer::no_longer_missing(Bucket& bucket) {
  --bucket.missing;
  if (reduce_ && options_.overlap) {
    launch_ready();
  }
}

void GradientReducer::complete(int index) {
  if (active_ && options_.ordered && learnt_ && parameters_[index].trainable) {
    no_longer_missing(buckets_[bucket_of_[index]]);
  }
}

/// A part that nobody announced never shares a sum with those that were: whether
/// the bucket has left already must not matter.
void GradientReducer::before_late(int index) {
  if (!active_ || !reduce_ || !options_.overlap || !parameters_[index].trainable) {
    return;
  }
  while (static_cast<int>(next_bucket_) <= bucket_of_[index]) {
    launch(buckets_[next_bucket_], false);
    ++next_bucket_;
  }
}

void GradientReducer::launch_ready() {
  while (next_bucket_ < buckets_.size() && buckets_[next_bucket_].missing == 0) {
    launch(buckets_[next_bucket_], false);
    ++next_bucket_; // only now: a launch that threw is made up for in finish
  }
}

std::string GradientReducer::sparse_gradient() const {
  for (const Parameter& parameter : parameters_) {
    const at::Tensor& gradient = parameter.tensor.grad();
    if (parameter.trainable && gradient.defined() && gradient.is_sparse()) {
      return str(
          "rank ",
          world_.rank(),
          ": parameter '",
          parameter.name,
          "' has a sparse gradient, which data parallelism cannot average; "
          "make the embedding with sparse(false)");
    }
  }
  return {};
}

/// The i-th parameter's part of the buffer: a tensor of its own, not a view to
/// autograd, which would refuse the optimizer's detach_().
at::Tensor GradientReducer::slice_of(const Bucket& bucket, std::size_t i) const {
  const at::Tensor& parameter = parameters_[bucket.parameters[i]].tensor;
  return bucket.flat.narrow(0, bucket.offsets[i], parameter.numel())
      .view(parameter.sizes())
      .variable_data();
}

/// Whether nobody holds a part of the buffer but gradients of the bucket's
/// parameters, each at its place: then they can travel as they are, and what
/// else there is be put beside them. Not so while a script keeps a gradient of
/// the step before.
bool GradientReducer::is_free_but_for_its_gradients(const Bucket& bucket) const {
  if (!bucket.flat.defined()) {
    return false;
  }
  std::size_t holders = 1; // the bucket itself
  for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
    const at::Tensor& gradient = parameters_[bucket.parameters[i]].tensor.grad();
    if (!gradient.defined() || gradient.is_sparse() ||
        !gradient.storage().is_alias_of(bucket.flat.storage())) {
      continue;
    }
    if (gradient.storage_offset() != bucket.offsets[i] || !gradient.is_contiguous() ||
        gradient.use_count() != 1) {
      return false;
    }
    ++holders;
  }
  return static_cast<std::size_t>(bucket.flat.storage().use_count()) == holders;
}

/// Where a parameter's first gradient of a step is made, so that it need not be
/// copied there. Not after its bucket has left: that is on its way.
at::Tensor GradientReducer::place(int index) const {
  if (!active_ || !learnt_ || !parameters_[index].trainable) {
    return {};
  }
  const Bucket& bucket = buckets_[bucket_of_[index]];
  if (bucket.work != nullptr || !is_free_but_for_its_gradients(bucket)) {
    return {};
  }
  const auto found = std::find(bucket.parameters.begin(), bucket.parameters.end(), index);
  return slice_of(bucket, static_cast<std::size_t>(found - bucket.parameters.begin()));
}

/// Gradients, and zeros where there are none, to `flat`, if they do not lie
/// there.
void GradientReducer::fill(Bucket& bucket, at::Tensor& flat, bool zeros) {
  for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
    const Parameter& parameter = parameters_[bucket.parameters[i]];
    at::Tensor slice = flat.narrow(0, bucket.offsets[i], parameter.tensor.numel());
    const at::Tensor& gradient = parameter.tensor.grad();
    if (!gradient.defined() || zeros) {
      slice.zero_();
    } else if (gradient.is_sparse()) {
      throw UserError(sparse_gradient());
    } else if (gradient.data_ptr() != slice.data_ptr()) {
      slice.copy_(gradient.reshape({-1}));
    }
  }
}

comm::WorkPtr GradientReducer::average(const at::Tensor& flat) {
  return group_.scaled_sum_async(flat, options_.scale.value_or(1.0 / group_.size()));
}

void GradientReducer::launch(Bucket& bucket, bool zeros) {
  const at::NoGradGuard no_grad;
  if (!is_free_but_for_its_gradients(bucket)) {
    // A script's own handles may still lie in the buffer: they keep it, and
    // this step gets another one.
    const at::Tensor& first = parameters_[bucket.parameters[0]].tensor;
    bucket.flat = at::empty({bucket.elements}, first.options().requires_grad(false));
  }
  fill(bucket, bucket.flat, zeros);
  // What is added from now on begins anew: the buffer is on its way.
  for (const int index : bucket.parameters) {
    Parameter& parameter = parameters_[index];
    parameter.travels = parameter.travels || parameter.tensor.grad().defined();
    parameter.tensor.mutable_grad() = at::Tensor();
  }
  bucket.work = average(bucket.flat);
}

/// Adds what any rank's gradients got after the bucket had left.
void GradientReducer::send_late_parts(Bucket& bucket) {
  bucket.late_parts = at::empty_like(bucket.flat);
  fill(bucket, bucket.late_parts, false);
  average(bucket.late_parts)->wait();
  bucket.flat.add_(bucket.late_parts);
  bucket.late_parts = at::Tensor();
}

/// The parameters whose gradient travelled get their parts of the buffer.
void GradientReducer::hand_back(Bucket& bucket) {
  for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
    Parameter& parameter = parameters_[bucket.parameters[i]];
    if (parameter.travels) {
      parameter.tensor.mutable_grad() = slice_of(bucket, i); // no copy back
      parameter.average = WeakGradient(parameter.tensor.grad().getIntrusivePtr());
    }
    parameter.grown = false; // the bucket held all of the gradient
  }
  bucket.work = nullptr;
}

bool GradientReducer::finish(const std::optional<std::string>& failure) {
  active_ = false;
  const at::NoGradGuard no_grad;
  const std::string problem = failure ? *failure : sparse_gradient();
  const bool failed = failure.has_value() || !problem.empty();
  // One round: who failed, was there a backward, which bucket was late, which
  // gradient exists.
  const std::size_t head = 2 + buckets_.size();
  at::Tensor flags = at::zeros({static_cast<std::int64_t>(head + parameters_.size())}, at::kByte);
  auto* flag = flags.data_ptr<std::uint8_t>();
  flag[0] = failed ? 1 : 0;
  flag[1] = backward_ ? 1 : 0;
  for (std::size_t i = 0; i < buckets_.size(); ++i) {
    flag[2 + i] = buckets_[i].late ? 1 : 0;
  }
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    flag[head + i] = parameters_[i].travels || parameters_[i].tensor.grad().defined() ? 1 : 0;
  }
  control_.all_reduce(flags, comm::ReduceOp::kMax);
  const bool reduce = reduce_ && flag[1] != 0;
  if (reduce) {
    for (; next_bucket_ < buckets_.size(); ++next_bucket_) {
      launch(buckets_[next_bucket_], failed);
    }
  }
  for (Bucket& bucket : buckets_) {
    if (bucket.work != nullptr) {
      bucket.work->wait();
    }
  }
  if (flag[0] != 0) {
    for (Bucket& bucket : buckets_) {
      if (bucket.work != nullptr) {
        hand_back(bucket); // of no meaning, but the step's gradients stay set
      }
    }
    throw_any(failed ? std::optional(problem) : std::nullopt);
  }
  if (reduce) {
    for (std::size_t i = 0; i < buckets_.size(); ++i) {
      if (flag[2 + i] != 0) {
        send_late_parts(buckets_[i]);
      }
    }
    // A gradient that any rank has, all have.
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      parameters_[i].travels = flag[head + i] != 0;
    }
    for (Bucket& bucket : buckets_) {
      hand_back(bucket);
    }
  }
  if (flag[1] != 0) {
    learn_order();
    for (Parameter& parameter : parameters_) {
      parameter.expected = parameter.count;
    }
  }
  return flag[1] != 0;
}

/// Throws the first rank's problem on every rank.
void GradientReducer::throw_any(const std::optional<std::string>& problem) {
  const auto texts =
      comm::all_gather_object(world_, control_, problem ? c10::IValue(*problem) : c10::IValue());
  for (const auto& text : texts) {
    if (!text.isNone()) {
      throw UserError(text.toStringRef());
    }
  }
}

bool GradientReducer::is_unaveraged(const Parameter& parameter) const {
  const at::Tensor& gradient = parameter.tensor.grad();
  return gradient.defined() && (parameter.grown || parameter.average._unsafe_get_target() !=
                                                       gradient.unsafeGetTensorImpl());
}

std::string GradientReducer::unaveraged_gradient() const {
  const auto found = std::find_if(
      parameters_.begin(), parameters_.end(), [&](const auto& p) { return is_unaveraged(p); });
  return found == parameters_.end() ? std::string() : found->name;
}

void GradientReducer::average_rest() {
  const at::NoGradGuard no_grad;
  // One round: is a gradient sparse, which need averaging.
  at::Tensor flags = at::zeros({static_cast<std::int64_t>(1 + parameters_.size())}, at::kByte);
  auto* flag = flags.data_ptr<std::uint8_t>();
  const std::string problem = sparse_gradient();
  flag[0] = problem.empty() ? 0 : 1;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    flag[1 + i] = is_unaveraged(parameters_[i]) ? 1 : 0;
  }
  control_.all_reduce(flags, comm::ReduceOp::kMax);
  if (flag[0] != 0) {
    throw_any(problem.empty() ? std::nullopt : std::optional(problem));
  }
  std::map<at::ScalarType, std::vector<Parameter*>> by_type;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (flag[1 + i] != 0) {
      by_type[parameters_[i].tensor.scalar_type()].push_back(&parameters_[i]);
    }
  }
  for (const auto& [type, list] : by_type) {
    std::vector<at::Tensor> rows;
    for (Parameter* parameter : list) {
      at::Tensor& gradient = parameter->tensor.mutable_grad();
      if (!gradient.defined()) {
        gradient = at::zeros_like(parameter->tensor.detach());
      }
      rows.push_back(gradient.detach().reshape({-1}));
    }
    const at::Tensor flat = at::cat(rows);
    average(flat)->wait();
    std::int64_t at = 0;
    for (Parameter* parameter : list) {
      const at::Tensor& gradient = parameter->tensor.grad();
      gradient.detach().copy_(flat.narrow(0, at, gradient.numel()).view(gradient.sizes()));
      at += gradient.numel();
      parameter->grown = false;
      parameter->average = WeakGradient(gradient.getIntrusivePtr());
    }
  }
}

void GradientReducer::learn_order() {
  if (learnt_) {
    return;
  }
  std::vector<std::int64_t> order(parameters_.size());
  std::iota(order.begin(), order.end(), 0);
  const auto position = [&](std::int64_t index) {
    const int done = parameters_[index].first_done;
    return done < 0 ? completed_ : done; // never reached: last
  };
  std::stable_sort(
      order.begin(), order.end(), [&](auto a, auto b) { return position(a) < position(b); });
  // The first rank's order serves all.
  const auto agreed =
      unpack<std::vector<std::int64_t>>(comm::broadcast_object(world_, control_, pack(order), 0));
  make_buckets(std::vector<int>(agreed.begin(), agreed.end()));
  learnt_ = true;
}

} // namespace tessera::data_parallel
