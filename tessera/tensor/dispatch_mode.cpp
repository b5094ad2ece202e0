#include "tessera/tensor/dispatch_mode.h"

#include <atomic>

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

namespace tessera {

namespace {

thread_local DispatchMode* t_mode = nullptr;
std::atomic<DispatchMode*> tensor_mode{nullptr};

void ask_mode(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(kModeKey);
  DispatchMode* mode = t_mode != nullptr ? t_mode : tensor_mode.load();
  // Another thread may have inherited the key, but not the mode: plain there.
  if (mode == nullptr) {
    op.callBoxed(stack);
  } else {
    mode->call(op, stack);
  }
}

} // namespace

void call_plain(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(kModeKey);
  op.callBoxed(stack);
}

DispatchScope::DispatchScope(DispatchMode* mode)
    : previous_mode_(t_mode),
      previous_included_(c10::impl::tls_is_dispatch_key_included(kModeKey)) {
  t_mode = mode;
  c10::impl::tls_set_dispatch_key_included(kModeKey, mode != nullptr);
}

DispatchScope::~DispatchScope() {
  t_mode = previous_mode_;
  c10::impl::tls_set_dispatch_key_included(kModeKey, previous_included_);
}

void set_tensor_dispatch_mode(DispatchMode* mode) {
  tensor_mode.store(mode);
}

} // namespace tessera

TORCH_LIBRARY_IMPL(_, DeferredInit, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&tessera::ask_mode>());
}
