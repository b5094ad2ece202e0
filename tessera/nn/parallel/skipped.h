#pragma once

#include <functional>
#include <string>

#include <ATen/core/Tensor.h>

// What distributed modules leave out while one rank traces alone (shapes_only):
// collectives, and products whose operands other ranks hold. A tracer that
// wants to know what a step will cost listens.
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
  // Of products: `count` of them, (rows x inner) times (inner x columns).
  double count = 0;
  double rows = 0;
  double inner = 0;
  double columns = 0;
};

using SkippedListener = std::function<void(const SkippedWork&)>;

/// Listens on this thread while it lives.
class SkippedWorkScope {
 public:
  explicit SkippedWorkScope(SkippedListener listener);
  ~SkippedWorkScope();
  SkippedWorkScope(const SkippedWorkScope&) = delete;
  SkippedWorkScope& operator=(const SkippedWorkScope&) = delete;

 private:
  SkippedListener listener_;
  const SkippedListener* previous_;
};

/// Tells the listener, if there is one. Threads: any.
void tell_skipped(const SkippedWork& work);
void tell_skipped(
    const char* operation,
    int ranks,
    const at::Tensor& before,
    bool has_adjoint = true);

} // namespace tessera::nn
