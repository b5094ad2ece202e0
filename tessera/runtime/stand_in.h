#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/autograd/dispatch_mode.h"
#include "tessera/runtime/flow.h"

/// Tensors without numbers, given to user code in place of those that its rank
/// only hands on (fast mode). A verifying step finds out which those are: there
/// a stand-in knows the real tensor, and every operator on it takes that and is
/// noted as a read. In a static step an operator on a stand-in is an error.
///
/// A stand-in is a meta tensor, so code that asks for its address fails instead
/// of reading something else. Gradients of a verifying step are an exception:
/// autograd wants them where their tensor was.
/// Not collective. Threads: whoever holds the baton; operators on any thread.
namespace tessera::runtime {

/// The received slots that a rank read in a verifying step.
struct ReadSlots {
  std::mutex mutex; // threads of the user's own may read too
  std::set<Slot> slots;
  /// A tensor was made with the options of a stand-in: which is not known.
  bool all = false;
  at::Device device{at::kCPU}; // of received tensors
};

struct StandIn {
  std::vector<Slot> origins; // it stands for the sum of these
  const c10::TensorImpl* self = nullptr; // not of views that share its storage
  // Verifying step:
  at::Tensor real;
  std::shared_ptr<ReadSlots> reads;
  // Static step: what it stands for, for messages.
  std::shared_ptr<const std::string> what;
};

/// What the tensor stands for, nullptr when it is a tensor like others.
StandIn* stand_in_of(const at::Tensor& tensor);

/// `gradient`: with the numbers of `real`. Hangs in the graph as `real` does.
at::Tensor verifying_stand_in(
    const at::Tensor& real,
    std::vector<Slot> origins,
    std::shared_ptr<ReadSlots> reads,
    bool gradient);

/// `meta`: of the shape, without a graph.
at::Tensor static_stand_in(
    const at::Tensor& meta,
    std::vector<Slot> origins,
    std::shared_ptr<const std::string> what);

/// The tensor itself, or what it stands for, which is noted as read.
/// Throws: UserError for the stand-in of a static step; `reader` names who
/// reads.
at::Tensor read_tensor(const at::Tensor& tensor, const std::string& reader);

/// Sees the operators of a thread in a verifying step: also those that make a
/// tensor on the meta device because a stand-in is there.
class VerifyingMode : public DispatchMode {
 public:
  explicit VerifyingMode(std::shared_ptr<ReadSlots> reads) : reads_(std::move(reads)) {}
  void call(const c10::OperatorHandle& op, torch::jit::Stack* stack) override;

 private:
  std::shared_ptr<ReadSlots> reads_;
};

} // namespace tessera::runtime
