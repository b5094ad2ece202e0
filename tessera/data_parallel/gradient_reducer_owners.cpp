// Averages that go to one rank each: the owner of the parameter's optimizer state.
#include <algorithm>
#include <cmath>
#include <optional>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include "tessera/base/error.h"
#include "tessera/data_parallel/gradient_reducer.h"

namespace tessera::data_parallel {

namespace {

// Below this a bucket costs more than it brings.
constexpr std::int64_t kLeastBucketBytes = 1 << 20;

} // namespace

bool GradientReducer::is_all_zero(const at::Tensor& gradient) {
  const at::Tensor values = gradient.is_sparse() ? gradient.coalesce().values() : gradient;
  return !values.ne(0).any().item<bool>();
}

/// Whether averaging an average again would change it: ranks lack it, or their sum is of more
/// samples than a mean over them is (gradients that a TP_GROUP divides).
bool GradientReducer::stays_apart(const Parameter& parameter) const {
  return parameter.owner >= 0 || scale() != 1.0 / group_.size();
}

bool GradientReducer::shares() const {
  return std::any_of(parameters_.begin(), parameters_.end(), [](const Parameter& parameter) {
    return parameter.owner >= 0;
  });
}

void GradientReducer::set_owners(const std::vector<int>& owners) {
  TESSERA_CHECK(
      owners.size() == parameters_.size() && !active_,
      "owners of ",
      owners.size(),
      " of ",
      parameters_.size(),
      " parameters");
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < owners.size(); ++i) {
    Parameter& parameter = parameters_[i];
    const bool had_it = !is_elsewhere(parameter.owner);
    const bool alone = is_here(parameter.owner) && owners[i] != parameter.owner;
    parameter.owner = owners[i];
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    const bool leaves = had_it && (is_elsewhere(owners[i]) || alone);
    if (leaves && gradient.defined() && !is_unaveraged(parameter)) {
      gradient = at::Tensor();
    }
  }
  make_buckets(order_);
}

/// One bucket of every owner is being filled at a time, so together they are as large as one that
/// goes to all ranks.
std::int64_t GradientReducer::bucket_bytes() const {
  if (!shares()) {
    return options_.bucket_bytes;
  }
  return std::min(
      options_.bucket_bytes, std::max(options_.bucket_bytes / group_.size(), kLeastBucketBytes));
}

/// Whether a sum that is reduced and then scaled has the bits of scaled_sum_async. In 16 bits the
/// sum is rounded before it is scaled, which only a power of two leaves as it is, and in f16 it may
/// overflow. Where it has not, the average goes to all ranks and the owner keeps it.
bool GradientReducer::reduces_to_owner(at::ScalarType type) const {
  int exponent = 0;
  const bool power_of_two = std::frexp(scale(), &exponent) == 0.5;
  return type == at::kFloat || type == at::kDouble || (type == at::kBFloat16 && power_of_two);
}

void GradientReducer::weigh(const at::Tensor& flat) const {
  if (options_.weight != 1) {
    flat.mul_(options_.weight);
  }
}

/// `flat`: this rank's own, whose values are lost.
comm::WorkPtr GradientReducer::start_average(const at::Tensor& flat, int owner) {
  weigh(flat);
  return start_sum(flat, owner);
}

/// Of gradients that are weighed already.
comm::WorkPtr GradientReducer::start_sum(const at::Tensor& flat, int owner) {
  if (owner < 0 || !reduces_to_owner(flat.scalar_type())) {
    return group_.scaled_sum_async(flat, scale());
  }
  return group_.reduce_async(flat, owner, comm::ReduceOp::kSum);
}

/// Waits; then `flat` holds the average on the ranks that get it.
void GradientReducer::end_average(comm::Work& work, const at::Tensor& flat, int owner) {
  work.wait();
  if (is_here(owner) && reduces_to_owner(flat.scalar_type())) {
    flat.mul_(scale());
  }
}

/// The memory of gradients that have reached their owner is free for the rest of the backward.
void GradientReducer::free_what_has_arrived() {
  for (Bucket& bucket : buckets_) {
    if (bucket.work != nullptr && is_elsewhere(bucket.owner) && bucket.work->done()) {
      bucket.work->wait();
      bucket.work = nullptr;
      bucket.flat = at::Tensor();
    }
  }
}

/// An addition that is not averaged in this step, on top of an average that others do not have:
/// from their sum neither part can be told.
void GradientReducer::note_mixed(Parameter& parameter) const {
  const at::Tensor& gradient = parameter.tensor.grad();
  if (!stays_apart(parameter) || (active_ && reduce_) || !gradient.defined()) {
    return;
  }
  const bool out_of_place = at::GradMode::is_enabled(); // create_graph
  const auto* of_mixed = parameter.mixed_in._unsafe_get_target();
  if (!out_of_place && of_mixed != nullptr && of_mixed != gradient.unsafeGetTensorImpl()) {
    parameter.mixed = false; // the script's zero_grad was between the two
  }
  const bool had_average =
      parameter.owner >= 0 ||
      (out_of_place && !parameter.grown && parameter.average._unsafe_get_target() != nullptr);
  parameter.mixed =
      parameter.mixed || (had_average && gradient.requires_grad()) ||
      (!is_elsewhere(parameter.owner) && !parameter.grown && !is_unaveraged(parameter));
  // Dense parts that are added to a sparse gradient make another tensor.
  const bool tells = parameter.mixed && !gradient.is_sparse();
  parameter.mixed_in = WeakGradient(tells ? gradient.getIntrusivePtr() : StrongGradient());
}

/// The owner has the average of earlier steps and other ranks have nothing, or the average would be
/// scaled again, so what this step adds is averaged by itself.
void GradientReducer::set_averages_aside() {
  // An evaluation may be one: what becomes a gradient here is added to later.
  std::optional<c10::InferenceMode> normal;
  if (c10::InferenceMode::is_enabled()) {
    normal.emplace(false);
  }
  const at::NoGradGuard no_grad;
  for (Parameter& parameter : parameters_) {
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    parameter.mixed = parameter.mixed && gradient.defined() && !is_all_zero(gradient);
    parameter.base = at::Tensor();
    parameter.zeros.reset();
    if (!reduce_ && !parameter.grown && gradient.defined() && !is_elsewhere(parameter.owner) &&
        stays_apart(parameter) && is_all_zero(gradient)) {
      parameter.grown = true; // nothing is below what this step adds
    }
    if (reduce_ && stays_apart(parameter) && !is_elsewhere(parameter.owner) && gradient.defined() &&
        !is_unaveraged(parameter)) {
      std::swap(parameter.base, gradient);
      if (!parameter.base.is_sparse()) { // a sparse gradient would become dense with zeros
        gradient = at::zeros_like(parameter.base.detach());
        parameter.zeros.emplace(gradient.getIntrusivePtr());
        parameter.zeros_version = static_cast<std::int64_t>(gradient._version());
      }
    }
  }
}

/// zero_grad of a module knows nothing of averages that are set aside, but it replaces what the
/// script sees of them; so do all of libtorch's. Called before the gradient travels.
void GradientReducer::notice_zeroed(Parameter& parameter) {
  if (!parameter.zeros) {
    return;
  }
  at::Tensor& gradient = parameter.tensor.mutable_grad();
  if (parameter.zeros->_unsafe_get_target() != gradient.unsafeGetTensorImpl()) {
    parameter.base = at::Tensor();
  } else if (static_cast<std::int64_t>(gradient._version()) == parameter.zeros_version) {
    gradient = at::Tensor(); // nothing was added
  }
  parameter.zeros.reset();
}

void GradientReducer::forget_averages(const ParameterSet* of, bool set_to_none) {
  for (Parameter& parameter : parameters_) {
    if (of == nullptr || of->contains(parameter.tensor.unsafeGetTensorImpl())) {
      at::Tensor& base = parameter.base;
      const bool zero = !set_to_none && base.defined() && !base.is_sparse();
      base = zero ? at::zeros_like(base.detach()) : at::Tensor();
      parameter.mixed = false;
      if (parameter.owner < 0) { // what the owner writes in place counts as an average
        parameter.average = WeakGradient(StrongGradient());
      }
    }
  }
}

void GradientReducer::add_averages_back() {
  for (Parameter& parameter : parameters_) {
    if (!parameter.base.defined()) {
      continue;
    }
    const at::Tensor base = std::exchange(parameter.base, {});
    at::Tensor& gradient = parameter.tensor.mutable_grad();
    if (!gradient.defined()) {
      gradient = base;
    } else if (!gradient.is_sparse() && !base.is_sparse()) {
      gradient.add_(base);
    } else { // a sparse tensor is added to a dense one, not the other way round
      gradient = base.is_sparse() ? gradient + base : base + gradient;
    }
    parameter.average = WeakGradient(gradient.getIntrusivePtr());
  }
}

/// This rank's first gradient whose average cannot be known; for the error of all ranks.
std::optional<std::string> GradientReducer::refused_addition() const {
  for (const Parameter& parameter : parameters_) {
    const at::Tensor& gradient = parameter.tensor.grad();
    if (parameter.mixed && (parameter.travels || (gradient.defined() && !is_all_zero(gradient)))) {
      return str(
          "rank ",
          world_.rank(),
          ": a backward outside of a step, or a step that did not average, added to the gradient "
          "of '",
          parameter.name,
          parameter.owner >= 0
              ? "', of which with shard_optimizer_state only its owner has the average; call "
              : "', which is divided over a tensor-parallel group and holds an average already; "
                "call ",
          "optimizer.step() and optimizer.zero_grad() before it, or do that backward inside the "
          "step function");
    }
  }
  return std::nullopt;
}

std::optional<std::string> GradientReducer::refused_gradient() const {
  if (const auto addition = refused_addition()) {
    return addition;
  }
  for (const Parameter& parameter : parameters_) {
    const at::Tensor& gradient = parameter.tensor.grad();
    if (parameter.owner >= 0 && is_unaveraged(parameter) && !parameter.grown &&
        !is_all_zero(gradient)) {
      return str(
          "rank ",
          world_.rank(),
          ": the gradient of '",
          parameter.name,
          "' is a tensor that no backward made; with shard_optimizer_state only the parameter's "
          "owner has the average, so change it there in place, or leave shard_optimizer_state "
          "out");
    }
  }
  return std::nullopt;
}

} // namespace tessera::data_parallel
