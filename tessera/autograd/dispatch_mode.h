#pragma once

#include <cstddef>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace tessera {

/// Sees every operator call that this thread makes within a DispatchScope,
/// before autograd and before composite operators are taken apart: `linear` is
/// one call, a factory such as `empty` is a call without tensor arguments.
///
/// How: a boxed fallback of the dispatch key DeferredInit, which libtorch keeps
/// free for out-of-tree use. It stands above autograd, so a handler may change
/// the device of a factory and autograd still records what it makes.
///
/// Threads: a scope belongs to the thread that opened it.
class DispatchMode {
 public:
  virtual ~DispatchMode() = default;

  /// Takes the arguments of `op` from the top of `stack` and leaves its results
  /// there. Operators called from inside are not seen by any mode.
  virtual void call(const c10::OperatorHandle& op, torch::jit::Stack* stack) = 0;
};

/// Runs `op` as if no mode were there.
void call_plain(const c10::OperatorHandle& op, torch::jit::Stack* stack);

/// Makes `mode` see this thread's operators until the end of the scope. Scopes
/// nest; the innermost mode alone is asked.
class DispatchScope {
 public:
  explicit DispatchScope(DispatchMode* mode);
  ~DispatchScope();
  DispatchScope(const DispatchScope&) = delete;
  DispatchScope& operator=(const DispatchScope&) = delete;

 private:
  DispatchMode* previous_mode_;
  bool previous_included_;
};

/// Sees, on any thread and without a scope, the operators on tensors of its own
/// that were given to it with `attract_mode`.
class TensorDispatchMode : public DispatchMode {
 public:
  /// Returns whether the mode handles this tensor; only called with tensors that have kModeKey.
  virtual bool owns(const at::Tensor& tensor) const = 0;
};

/// `mode` must live as long as the program. Of several modes the first that
/// owns a tensor among the arguments is asked.
void add_tensor_dispatch_mode(TensorDispatchMode* mode);

/// `mode` is asked before the thread's own mode and before all others: a tensor of its own must
/// reach no kernel, whichever modes are active. It lives as long as the program.
void add_guard_dispatch_mode(TensorDispatchMode* mode);

/// Calls `op` so that the modes see it again, although a mode calls it. The caller has changed the
/// arguments so that its own mode does not own them any more.
void call_seen(const c10::OperatorHandle& op, torch::jit::Stack* stack);

inline constexpr c10::DispatchKey kModeKey = c10::DispatchKey::DeferredInit;

/// Puts kModeKey into the tensor's key set, and with that its operators before
/// the tensor dispatch modes.
void attract_mode(const at::Tensor& tensor);

/// The arguments of `op`: the last ones on the stack.
inline at::ArrayRef<c10::IValue> arguments_of(
    const c10::OperatorHandle& op,
    const torch::jit::Stack& stack) {
  const std::size_t count = op.schema().arguments().size();
  return at::ArrayRef<c10::IValue>(stack.data() + (stack.size() - count), count);
}

/// Calls visit(tensor) for every defined tensor in one argument or result of an
/// operator: a tensor, an optional one, or a list of either.
template <typename Visit>
void for_each_operator_tensor(const c10::IValue& value, Visit&& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) {
      visit(value.toTensor());
    }
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      for_each_operator_tensor(element, visit);
    }
  }
}

/// The same argument with every defined tensor replaced by map(tensor); lists
/// keep their element type, which boxed calls check.
template <typename Map>
c10::IValue map_operator_tensors(const c10::IValue& value, Map&& map) {
  if (value.isTensor()) {
    return value.toTensor().defined() ? c10::IValue(map(value.toTensor())) : value;
  }
  if (value.isList()) {
    bool any = false;
    for_each_operator_tensor(value, [&](const at::Tensor&) { any = true; });
    if (!any) {
      return value;
    }
    auto list = value.toList().copy();
    for (std::size_t i = 0; i < list.size(); ++i) {
      const c10::IValue element = list.get(i);
      if (element.isTensor() && element.toTensor().defined()) {
        list.set(i, c10::IValue(map(element.toTensor())));
      }
    }
    return list;
  }
  return value;
}

} // namespace tessera
