#include "tessera/data_parallel/gradient_reducer.h"

#include <algorithm>
#include <exception>
#include <map>
#include <numeric>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include "tessera/autograd/f32_gradients.h"
#include "tessera/autograd/weight_gradient.h"
#include "tessera/base/error.h"

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

/// Of the buffers in which gradients of the parameter travel.
at::TensorOptions GradientReducer::options_of_sum(const at::Tensor& parameter) const {
  return options_.f32_sums ? f32_sum_options(parameter) : parameter.options().requires_grad(false);
}

void GradientReducer::hook(int index) {
  Parameter& parameter = parameters_[index];
  if (parameter.accumulator != nullptr) {
    parameter.accumulator->del_post_hook(parameter.hook);
  }
  parameter.grown = parameter.tensor.grad().defined(); // by a backward of before
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
    // A change of type (`module->to(dtype)`) gives a parameter another accumulator.
    const bool hooked =
        parameter.accumulator != nullptr &&
        torch::autograd::impl::try_get_grad_accumulator(parameter.tensor) == parameter.accumulator;
    if (trainable && !hooked) {
      changed = true;
      hook(static_cast<int>(&parameter - parameters_.data()));
    }
  }
  if (!changed) {
    return;
  }
  // The first step has not shown an order yet; what is registered last is complete first.
  std::vector<int> order(parameters_.size());
  std::iota(order.rbegin(), order.rend(), 0);
  make_buckets(order);
  learnt_ = false;
}

void GradientReducer::make_buckets(const std::vector<int>& order) {
  order_ = order;
  buckets_.clear();
  bucket_of_.assign(parameters_.size(), -1);
  std::map<int, std::pair<std::size_t, std::int64_t>> open; // by owner: its last bucket, its bytes
  std::vector<std::size_t> last_position;
  for (std::size_t position = 0; position < order.size(); ++position) {
    const int index = order[position];
    const Parameter& parameter = parameters_[index];
    if (!parameter.trainable || parameter.by_itself) {
      continue;
    }
    const at::Tensor& tensor = parameter.tensor;
    const auto size =
        tensor.numel() * static_cast<std::int64_t>(options_of_sum(tensor).dtype().itemsize());
    const auto found = open.find(parameter.owner);
    const bool fits =
        found != open.end() &&
        parameters_[buckets_[found->second.first].parameters[0]].tensor.scalar_type() ==
            tensor.scalar_type() &&
        found->second.second + size <= bucket_bytes();
    if (!fits) {
      open[parameter.owner] = {buckets_.size(), 0};
      buckets_.emplace_back().owner = parameter.owner;
      last_position.push_back(0);
    }
    auto& [number, bytes] = open[parameter.owner];
    Bucket& bucket = buckets_[number];
    bucket.parameters.push_back(index);
    bucket.offsets.push_back(bucket.elements);
    bucket.elements += tensor.numel();
    bytes += size;
    last_position[number] = position;
  }
  // Buckets leave in the order in which they are complete.
  std::vector<std::size_t> complete(buckets_.size());
  std::iota(complete.begin(), complete.end(), 0);
  std::sort(complete.begin(), complete.end(), [&](std::size_t a, std::size_t b) {
    return last_position[a] < last_position[b];
  });
  std::vector<Bucket> sorted;
  for (const std::size_t number : complete) {
    for (const int index : buckets_[number].parameters) {
      bucket_of_[index] = static_cast<int>(sorted.size());
    }
    sorted.push_back(std::move(buckets_[number]));
  }
  buckets_ = std::move(sorted);
}

void GradientReducer::begin(bool reduce) {
  reduce_ = reduce;
  active_ = true;
  backward_ = false;
  next_bucket_ = 0;
  completed_ = 0;
  problem_.reset(); // of a step that did not come to its end
  find_trainable();
  set_averages_aside();
  for (Parameter& parameter : parameters_) {
    parameter.count = 0;
    parameter.travels = false;
    parameter.first_done = -1;
    parameter.grown = parameter.grown && parameter.tensor.grad().defined();
  }
  for (Bucket& bucket : buckets_) {
    bucket.late = false;
    bucket.left = false;
    bucket.work = nullptr;
    // A parameter without a gradient in the previous step does not hold up its bucket. A
    // GradientOrder reports every parameter, so then all count.
    bucket.missing = static_cast<int>(
        std::count_if(bucket.parameters.begin(), bucket.parameters.end(), [&](int index) {
          return options_.ordered || parameters_[index].expected > 0;
        }));
  }
}

void GradientReducer::counted(int index) {
  Parameter& parameter = parameters_[index];
  note_mixed(parameter);
  if (parameter.zeros && at::GradMode::is_enabled()) { // create_graph adds out of place
    parameter.zeros.emplace(parameter.tensor.grad().getIntrusivePtr());
    parameter.zeros_version = -1; // the new tensor is a sum, whatever its version
  }
  parameter.grown = parameter.grown || !active_ || !reduce_;
  if (!active_ || !parameter.trainable) {
    return; // the user's own backward, outside of a step
  }
  ++parameter.count;
  backward_ = true;
  if (!in_bucket(index)) {
    return;
  }
  Bucket& bucket = buckets_[bucket_of_[index]];
  if (bucket.left) {
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
  if (active_ && options_.ordered && learnt_ && in_bucket(index)) {
    no_longer_missing(buckets_[bucket_of_[index]]);
  }
}

/// An unannounced part travels apart from the announced ones, so that the result does not depend on
/// whether the bucket has left already.
void GradientReducer::before_late(int index) {
  if (!active_ || !reduce_ || !options_.overlap || !in_bucket(index)) {
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
    ++next_bucket_; // after the launch: `finish` repeats one that threw
  }
}

/// The i-th parameter's part of the buffer, as a tensor of its own: autograd would refuse the
/// optimizer's detach_() on a view.
at::Tensor GradientReducer::slice_of(const Bucket& bucket, std::size_t i) const {
  const at::Tensor& parameter = parameters_[bucket.parameters[i]].tensor;
  return bucket.flat.narrow(0, bucket.offsets[i], parameter.numel())
      .view(parameter.sizes())
      .variable_data();
}

/// Whether only gradients of the bucket's parameters hold parts of the buffer, each in its own
/// place. Then these travel without a copy, and the others are copied beside them. A gradient of
/// the previous step that a script keeps makes it false.
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

/// The memory in which a parameter's first gradient of a step is made, so that it need not be
/// copied there; undefined once its bucket has left.
at::Tensor GradientReducer::place(int index) {
  if (!active_ || !learnt_ || !in_bucket(index) || !options_.views) {
    return {};
  }
  Bucket& bucket = buckets_[bucket_of_[index]];
  if (!bucket.left && !bucket.flat.defined() && is_elsewhere(bucket.owner)) {
    bucket.flat =
        at::empty({bucket.elements}, options_of_sum(parameters_[index].tensor)); // freed since
  }
  if (bucket.left || !is_free_but_for_its_gradients(bucket)) {
    return {};
  }
  const auto found = std::find(bucket.parameters.begin(), bucket.parameters.end(), index);
  return slice_of(bucket, static_cast<std::size_t>(found - bucket.parameters.begin()));
}

/// Copies gradients that do not lie in `flat` already into it, and zeros for parameters without
/// one or with a sparse one, which travels by itself.
void GradientReducer::fill(Bucket& bucket, at::Tensor& flat, bool zeros) {
  for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
    const Parameter& parameter = parameters_[bucket.parameters[i]];
    at::Tensor slice = flat.narrow(0, bucket.offsets[i], parameter.tensor.numel());
    const at::Tensor& gradient = parameter.tensor.grad();
    if (!gradient.defined() || gradient.is_sparse() || zeros) {
      slice.zero_();
    } else if (gradient.data_ptr() != slice.data_ptr()) {
      slice.copy_(gradient.reshape({-1}));
    }
  }
}

/// Starts the average of a bucket's gradients, which `flat` holds; nullptr when it is there. After
/// an error of the hook the others' collectives find one of the same size where that helps.
comm::WorkPtr GradientReducer::start_bucket(const Bucket& bucket, const at::Tensor& flat) {
  if (hook_ == nullptr || problem_) {
    return start_average(flat, bucket.owner);
  }
  weigh(flat);
  const auto index = static_cast<int>(&bucket - buckets_.data());
  GradientBucket given{
      .buffer = flat,
      .parameters = {},
      .elements = {},
      .group = group_,
      .scale = scale(),
      .index = index,
      .last = index + 1 == static_cast<int>(buckets_.size())};
  for (const int parameter : bucket.parameters) {
    given.parameters.push_back(parameters_[parameter].name);
    given.elements.push_back(parameters_[parameter].tensor.numel());
  }
  try {
    return hook_(given);
  } catch (const std::exception& error) {
    problem_ =
        str("rank ", world_.rank(), ": the hook of register_comm_hook failed: ", error.what());
    return start_sum(flat, bucket.owner);
  }
}

void GradientReducer::launch(Bucket& bucket, bool zeros) {
  const at::NoGradGuard no_grad;
  free_what_has_arrived();
  for (const int index : bucket.parameters) {
    notice_zeroed(parameters_[index]);
  }
  if (!is_free_but_for_its_gradients(bucket)) {
    // Handles of the script may still refer to the buffer. They keep it, and this step gets a new
    // one.
    const at::Tensor& first = parameters_[bucket.parameters[0]].tensor;
    bucket.flat = at::empty({bucket.elements}, options_of_sum(first));
  }
  fill(bucket, bucket.flat, zeros);
  // The buffer is on its way, so later additions start from an undefined gradient.
  for (const int index : bucket.parameters) {
    Parameter& parameter = parameters_[index];
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    if (gradient.defined() && !gradient.is_sparse()) {
      parameter.travels = true;
      parameter.mixed = parameter.mixed && !is_all_zero(gradient); // for `finish`: it is gone then
      at::Tensor own = std::exchange(gradient, at::Tensor());
      parameter.own = options_.views ? at::Tensor() : std::move(own);
    }
  }
  bucket.work = start_bucket(bucket, bucket.flat);
  bucket.left = true;
}

/// Averages the parts that were added on any rank after the bucket had left.
void GradientReducer::send_late_parts(Bucket& bucket) {
  bucket.late_parts =
      at::empty({bucket.elements}, options_of_sum(parameters_[bucket.parameters[0]].tensor));
  fill(bucket, bucket.late_parts, false);
  if (const comm::WorkPtr work = start_bucket(bucket, bucket.late_parts)) {
    end_average(*work, bucket.late_parts, bucket.owner);
  }
  if (!is_elsewhere(bucket.owner)) {
    bucket.flat.add_(bucket.late_parts);
  }
  bucket.late_parts = at::Tensor();
}

/// The i-th parameter's average: where it lies in the buffer, with no copy back, or in the tensor
/// that its gradient was before.
at::Tensor GradientReducer::average_of(const Bucket& bucket, std::size_t i) {
  const at::Tensor slice = slice_of(bucket, i);
  if (options_.views) {
    return slice;
  }
  const at::Tensor own = parameters_[bucket.parameters[i]].own;
  // One of another kind, or of a graph, is not written to.
  if (!own.defined() || own.dtype() != slice.dtype() || own.requires_grad()) {
    return slice.clone();
  }
  return own.copy_(slice);
}

/// Gives the parameters whose gradient travelled their parts of the buffer.
void GradientReducer::hand_back(Bucket& bucket) {
  for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
    Parameter& parameter = parameters_[bucket.parameters[i]];
    if (is_elsewhere(bucket.owner)) {
      parameter.tensor.mutable_grad() = at::Tensor(); // a late part
    } else if (parameter.travels) {
      parameter.tensor.mutable_grad() = average_of(bucket, i);
      parameter.average = WeakGradient(parameter.tensor.grad().getIntrusivePtr());
    }
    parameter.own = at::Tensor();
    parameter.travels = false;
    parameter.grown = false; // the bucket held all of the gradient
    parameter.mixed = false;
  }
  bucket.work = nullptr;
  if (is_elsewhere(bucket.owner)) {
    bucket.flat = at::Tensor();
  }
}

} // namespace tessera::data_parallel
