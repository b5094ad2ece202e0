#include "tessera/optim/master_weights.h"

#include <algorithm>

#include <ATen/ATen.h>

namespace tessera::optim {

at::Tensor MasterWeights::add(const at::Tensor& parameter) {
  const auto type = parameter.scalar_type();
  if (type != at::kBFloat16 && type != at::kHalf) {
    return parameter;
  }
  at::Tensor master = parameter.detach().to(at::kFloat);
  master.set_requires_grad(parameter.requires_grad());
  pairs_.push_back(
      {.parameter = parameter,
       .master = master,
       .written_version = static_cast<std::int64_t>(parameter._version())});
  return master;
}

at::Tensor MasterWeights::of(const at::Tensor& parameter) const {
  for (const Pair& pair : pairs_) {
    if (pair.parameter.is_same(parameter)) {
      return pair.master;
    }
  }
  return parameter;
}

bool MasterWeights::is_master(const at::Tensor& tensor) const {
  return std::any_of(
      pairs_.begin(), pairs_.end(), [&](const Pair& pair) { return pair.master.is_same(tensor); });
}

void MasterWeights::follow_parameters() {
  const at::NoGradGuard no_grad;
  for (Pair& pair : pairs_) {
    const auto version = static_cast<std::int64_t>(pair.parameter._version());
    if (version == pair.written_version) {
      continue;
    }
    // What is the same in 16 bits keeps the master's.
    const at::Tensor same = pair.master.to(pair.parameter.scalar_type()).eq(pair.parameter);
    pair.master.copy_(at::where(same, pair.master, pair.parameter.to(at::kFloat)));
    pair.written_version = version;
  }
}

void MasterWeights::take_gradients(double scale) {
  const at::NoGradGuard no_grad;
  for (Pair& pair : pairs_) {
    const at::Tensor& gradient = pair.parameter.grad();
    const bool kept = gradient.defined() && pair.master.grad().defined() && pair.kept &&
                      pair.kept->_unsafe_get_target() == gradient.unsafeGetTensorImpl() &&
                      pair.kept_version == gradient._version();
    if (!kept) {
      // A copy also of a gradient that is f32 already: the two are scaled apart from each other.
      pair.master.mutable_grad() =
          gradient.defined()
              ? gradient.detach().to(at::kFloat, /*non_blocking=*/false, /*copy=*/true)
              : at::Tensor();
      if (gradient.defined() && scale != 1) {
        pair.master.mutable_grad().div_(scale);
      }
    }
  }
}

void MasterWeights::keep_gradients() {
  for (Pair& pair : pairs_) {
    const at::Tensor& gradient = pair.parameter.grad();
    if (gradient.defined()) {
      pair.kept.emplace(gradient.getIntrusivePtr());
      pair.kept_version = gradient._version();
    }
  }
}

void MasterWeights::write_back() {
  const at::NoGradGuard no_grad;
  for (Pair& pair : pairs_) {
    pair.parameter.copy_(pair.master);
    pair.written_version = static_cast<std::int64_t>(pair.parameter._version());
    pair.master.mutable_grad() = at::Tensor();
    pair.kept.reset();
  }
}

} // namespace tessera::optim
