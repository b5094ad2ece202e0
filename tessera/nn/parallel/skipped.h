#pragma once

#include <array>
#include <functional>
#include <initializer_list>
#include <string>

#include <ATen/core/Tensor.h>

// What one rank that traces alone (shapes_only) does not see in the operators of distributed
// modules: the collectives that they leave out, the products whose operands other ranks hold, and
// what their own derivatives save. A tracer that wants to know what a step will cost listens.
namespace tessera::nn {

struct SkippedWork {
  /// "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast",
  /// "panel" (of a product on a mesh), or "product".
  std::string operation;
  // Of all but products: ranks of the group, bytes of one rank's tensor before
  // it, and whether the backward has an adjoint.
  int ranks = 0;
  double bytes = 0;
  bool has_adjoint = true;
  // Of products: `count` of them, (rows x inner) times (inner x columns). Of panels: so many of
  // `bytes` each, which one product needs.
  double count = 0;
  double rows = 0;
  double inner = 0;
  double columns = 0;
  /// Of a product on a mesh, and of an embedding's panels: the bytes of the buffers that its
  /// exchange, and those of its backward, leave for the ones after it. Of each buffer the largest
  /// stays.
  std::array<double, 3> buffer_bytes = {};
};

/// Listens on this thread while it lives.
class SkippedWorkScope {
 public:
  /// What is called with the work, and with each tensor that a derivative of its own saves
  /// (OwnDerivativeScope), unless it is empty.
  struct Listener {
    std::function<void(const SkippedWork&)> skipped;
    std::function<void(const at::Tensor&)> saved;
  };

  explicit SkippedWorkScope(
      std::function<void(const SkippedWork&)> skipped,
      std::function<void(const at::Tensor&)> saved = {});
  ~SkippedWorkScope();
  SkippedWorkScope(const SkippedWorkScope&) = delete;
  SkippedWorkScope& operator=(const SkippedWorkScope&) = delete;

 private:
  Listener listener_;
  const Listener* previous_;
};

/// The forward of a function that has a derivative of its own: the operators that it calls while
/// this lives have none, so that autograd saves nothing of theirs.
class OwnDerivativeScope {
 public:
  OwnDerivativeScope();
  ~OwnDerivativeScope();
  OwnDerivativeScope(const OwnDerivativeScope&) = delete;
  OwnDerivativeScope& operator=(const OwnDerivativeScope&) = delete;

  /// Tells the listener, if there is one, what the derivative saves. Undefined tensors are nothing.
  void saves(std::initializer_list<at::Tensor> tensors) const;
};

/// Whether one lives on this thread.
bool has_own_derivative();

/// Tells the listener, if there is one. Threads: any.
void tell_skipped(const SkippedWork& work);
void tell_skipped(
    const char* operation,
    int ranks,
    const at::Tensor& before,
    bool has_adjoint = true);

} // namespace tessera::nn
