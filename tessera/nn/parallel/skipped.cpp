#include "tessera/nn/parallel/skipped.h"

#include <utility>

#include "tessera/tensor/dtype.h"

namespace tessera::nn {

namespace {

thread_local const SkippedListener* t_listener = nullptr;

} // namespace

SkippedWorkScope::SkippedWorkScope(SkippedListener listener)
    : listener_(std::move(listener)), previous_(t_listener) {
  t_listener = &listener_;
}

SkippedWorkScope::~SkippedWorkScope() {
  t_listener = previous_;
}

void tell_skipped(const SkippedWork& work) {
  if (t_listener != nullptr) {
    (*t_listener)(work);
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
