#include "tessera/autograd/dispatch_mode.h"

#include <array>
#include <atomic>

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include "tessera/base/error.h"

namespace tessera {

namespace {

thread_local DispatchMode* t_mode = nullptr;

// Filled by static initialisers and first uses, never emptied.
constexpr std::size_t kMostTensorModes = 4;
using ModeList = std::array<std::atomic<TensorDispatchMode*>, kMostTensorModes>;
ModeList tensor_modes{};
ModeList guard_modes{};

// Gives access to a protected member of TensorImpl; no object of this class exists.
struct ModeKeySet : c10::TensorImpl {
  static constexpr auto member() {
    return &ModeKeySet::key_set_;
  }
};

bool owns_argument(
    const TensorDispatchMode& mode,
    const c10::OperatorHandle& op,
    const torch::jit::Stack& stack) {
  bool owns = false;
  for (const c10::IValue& argument : arguments_of(op, stack)) {
    for_each_operator_tensor(argument, [&](const at::Tensor& tensor) {
      owns = owns || (tensor.key_set().has(kModeKey) && mode.owns(tensor));
    });
  }
  return owns;
}

DispatchMode*
owner_among(const ModeList& modes, const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  for (const auto& entry : modes) {
    TensorDispatchMode* mode = entry.load();
    if (mode == nullptr) {
      break;
    }
    if (owns_argument(*mode, op, stack)) {
      return mode;
    }
  }
  return nullptr;
}

DispatchMode* mode_for(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (DispatchMode* guard = owner_among(guard_modes, op, stack)) {
    return guard;
  }
  return t_mode != nullptr ? t_mode : owner_among(tensor_modes, op, stack);
}

void ask_mode(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(kModeKey);
  DispatchMode* mode = mode_for(op, *stack);
  // A thread may inherit the key without the mode; the operator then runs without modes.
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

namespace {

void add(ModeList& modes, TensorDispatchMode* mode) {
  for (auto& entry : modes) {
    TensorDispatchMode* empty = nullptr;
    if (entry.compare_exchange_strong(empty, mode)) {
      return;
    }
  }
  TESSERA_CHECK(false, "more than ", kMostTensorModes, " tensor modes");
}

/// Operators called inside the scope are seen by the modes again.
class SeenByModes {
 public:
  SeenByModes() : excluded_(c10::impl::tls_is_dispatch_key_excluded(kModeKey)) {
    c10::impl::tls_set_dispatch_key_excluded(kModeKey, false);
  }
  ~SeenByModes() {
    c10::impl::tls_set_dispatch_key_excluded(kModeKey, excluded_);
  }
  SeenByModes(const SeenByModes&) = delete;
  SeenByModes& operator=(const SeenByModes&) = delete;

 private:
  bool excluded_;
};

} // namespace

void add_tensor_dispatch_mode(TensorDispatchMode* mode) {
  add(tensor_modes, mode);
}

void add_guard_dispatch_mode(TensorDispatchMode* mode) {
  add(guard_modes, mode);
}

void call_seen(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const SeenByModes again;
  op.callBoxed(stack);
}

void attract_mode(const at::Tensor& tensor) {
  c10::DispatchKeySet& keys = tensor.unsafeGetTensorImpl()->*ModeKeySet::member();
  keys = keys.add(kModeKey);
}

} // namespace tessera

TORCH_LIBRARY_IMPL(_, DeferredInit, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&tessera::ask_mode>());
}
