#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/autograd/dispatch_mode.h"
#include "tessera/runtime/replay/recorded_flow.h"

/// Tensors without data, given to user code in place of those that its rank only forwards (fast
/// mode). A verifying step finds out which those are: there a placeholder knows the real tensor,
/// every operator on it uses that, and the read is recorded. In a static step an operator on a
/// placeholder is an error.
///
/// A placeholder is a meta tensor, so code that asks for its address fails instead of reading
/// something else. Gradients of a verifying step are an exception: autograd needs them on the
/// device of their tensor.
/// Not collective. Threads: whoever holds the baton; operators on any thread.
namespace tessera::runtime {

/// The received slots that a rank read in a verifying step.
struct ReadSlots {
  std::mutex mutex; // threads of the user's own may read too
  std::set<Slot> slots;
  /// A tensor was made with the options of a placeholder; it is not known of which.
  bool all = false;
  at::Device device{at::kCPU}; // of received tensors
};

/// What is attached to the storage of a placeholder tensor.
struct Placeholder {
  std::vector<Slot> origins; // the tensor stands for the sum of these
  const c10::TensorImpl* self = nullptr; // not of views that share its storage
  // Verifying step:
  at::Tensor real;
  std::shared_ptr<ReadSlots> reads;
  // Static step: what the tensor is, for error texts.
  std::shared_ptr<const std::string> what;
};

/// Returns nullptr for a tensor that is no placeholder.
Placeholder* placeholder_of(const at::Tensor& tensor);

/// Makes a placeholder that has the grad_fn of `real` and, with `gradient`, also its data.
at::Tensor verifying_placeholder(
    const at::Tensor& real,
    std::vector<Slot> origins,
    std::shared_ptr<ReadSlots> reads,
    bool gradient);

/// Makes `meta`, a meta tensor without a grad_fn, a placeholder.
at::Tensor static_placeholder(
    const at::Tensor& meta,
    std::vector<Slot> origins,
    std::shared_ptr<const std::string> what);

/// Returns the tensor itself, or the real one of a placeholder, whose slots are recorded as read.
/// Throws: UserError for the placeholder of a static step; `reader` names who reads.
at::Tensor read_tensor(const at::Tensor& tensor, const std::string& reader);

/// Intercepts the operators of a thread in a verifying step, also those that make a tensor on the
/// meta device because a placeholder is there.
class VerifyingMode : public DispatchMode {
 public:
  explicit VerifyingMode(std::shared_ptr<ReadSlots> reads) : reads_(std::move(reads)) {}
  void call(const c10::OperatorHandle& op, torch::jit::Stack* stack) override;

 private:
  std::shared_ptr<ReadSlots> reads_;
};

} // namespace tessera::runtime
