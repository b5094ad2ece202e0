#include "tessera/nn/parallel/skipped.h"

#include <utility>

#include "tessera/tensor/dtype.h"

namespace tessera::nn {

namespace {

thread_local const SkippedWorkScope::Listener* t_listener = nullptr;
thread_local int t_own_derivatives = 0;

} // namespace

SkippedWorkScope::SkippedWorkScope(
    std::function<void(const SkippedWork&)> skipped,
    std::function<void(const at::Tensor&)> saved)
    : listener_{std::move(skipped), std::move(saved)}, previous_(t_listener) {
  t_listener = &listener_;
}

SkippedWorkScope::~SkippedWorkScope() {
  t_listener = previous_;
}

OwnDerivativeScope::OwnDerivativeScope() {
  ++t_own_derivatives;
}

OwnDerivativeScope::~OwnDerivativeScope() {
  --t_own_derivatives;
}

void OwnDerivativeScope::saves(std::initializer_list<at::Tensor> tensors) const {
  if (t_listener == nullptr || !t_listener->saved) {
    return;
  }
  for (const at::Tensor& tensor : tensors) {
    if (tensor.defined()) {
      t_listener->saved(tensor);
    }
  }
}

bool has_own_derivative() {
  return t_own_derivatives > 0;
}

void tell_skipped(const SkippedWork& work) {
  if (t_listener != nullptr) {
    t_listener->skipped(work);
  }
}

void tell_skipped(const char* operation, int ranks, const at::Tensor& before, bool has_adjoint) {
  if (t_listener == nullptr) {
    return;
  }
  SkippedWork work;
  work.operation = operation;
  work.ranks = ranks;
  work.bytes = static_cast<double>(bytes_of(before));
  work.has_adjoint = has_adjoint;
  tell_skipped(work);
}

} // namespace tessera::nn
