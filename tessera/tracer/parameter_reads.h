#pragma once

#include <functional>
#include <unordered_map>
#include <vector>

#include "tessera/autograd/dispatch_mode.h"
#include "tessera/tracer/describe.h"

namespace tessera::tracer {

/// Records, during a trace, which operators read parameters or buffers of which module. The
/// operator of an operator layer (nn/module/operator_call.h) counts as a call of the layer. Any
/// other operator that reads a tensor of a module while another module runs needs it on its own
/// rank, so the two modules become one unit of partitioning. Threads: the thread of the trace.
class ParameterReads {
 public:
  /// `parts` must outlive it; reads are recorded in its graph.
  explicit ParameterReads(ModelParts& parts);

  /// The trace calls this before each operator, with the module that runs (an index into
  /// graph.modules, -1 outside of every module). Returns the layer whose call the operator is, or
  /// -1. Throws: ConfigError for a parameter that the step function reads past its module.
  int before(const c10::OperatorHandle& op, const torch::jit::Stack& stack, int current);

 private:
  const HeldTensor* find(const at::Tensor& tensor) const;
  void join(int node, const HeldTensor& tensor, const c10::OperatorHandle& op);

  ModelParts& parts_;
  std::unordered_map<const c10::TensorImpl*, int> by_tensor_; // into parts_.tensors
  std::unordered_map<const c10::StorageImpl*, int> by_storage_;
};

} // namespace tessera::tracer
