#pragma once

#include <functional>
#include <unordered_map>
#include <vector>

#include "tessera/autograd/dispatch_mode.h"
#include "tessera/tracer/describe.h"

namespace tessera::tracer {

/// Sees, during a trace, which operators read parameters or buffers of which module. A layer's
/// operator (nn/operator_call.h) is a call of the layer. Whatever else reads a tensor while another
/// module runs must find it on its own rank: the two modules become one unit of partitioning.
/// Threads: the thread of the trace.
class ParameterReads {
 public:
  /// `parts` outlives it; its graph learns what is found.
  explicit ParameterReads(ModelParts& parts);

  /// Called before an operator runs while module `current` (index into graph.modules, -1 outside
  /// of every module) does. Returns the node whose call the operator is, or -1.
  /// Throws: ConfigError for a parameter that the step function reads past its module.
  int before(const c10::OperatorHandle& op, const torch::jit::Stack& stack, int current);

 private:
  const HeldTensor* find(const at::Tensor& tensor) const;
  void join(int node, const HeldTensor& tensor, const c10::OperatorHandle& op);

  ModelParts& parts_;
  std::unordered_map<const c10::TensorImpl*, int> by_tensor_; // into parts_.tensors
  std::unordered_map<const c10::StorageImpl*, int> by_storage_;
};

} // namespace tessera::tracer
