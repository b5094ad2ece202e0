#pragma once

#include <functional>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/nn/module.h>

namespace tessera::tracer {

/// Undoes what operators of a pass change in place in tensors from before the pass, such as members
/// (`memory_.copy_(x)`) and tensors that a step function captured. Parameters, their gradients and
/// buffers are not touched. A tensor's memory is copied before its first change.
/// Threads: the thread of the pass.
class WriteLog {
 public:
  explicit WriteLog(const std::vector<torch::nn::Module*>& roots);

  /// Runs an operator of the pass with `run`, which leaves the results on the stack. `owner`
  /// returns the module whose state a tensor is, for tensors from before the pass that the operator
  /// writes; nullptr means that it is no module's.
  void operate(
      const c10::OperatorHandle& op,
      torch::jit::Stack* stack,
      const std::function<void()>& run,
      const std::function<const torch::nn::Module*(const at::Tensor&)>& owner);

  /// Restores what was changed and clears the log. Returns the owners of changed tensors that still
  /// exist; one that does not was made during the pass, by other code than an operator.
  std::vector<const torch::nn::Module*> undo();

 private:
  struct Written {
    c10::Storage storage; // keeps the memory
    at::Tensor bytes; // all of the storage, as a tensor
    at::Tensor saved; // a copy from before the change
    const torch::nn::Module* owner;
  };
  bool is_old(const at::Tensor& tensor) const;
  void save(const at::Tensor& tensor, const torch::nn::Module* owner);

  std::unordered_set<const c10::StorageImpl*> of_model_;
  std::unordered_set<const c10::StorageImpl*> made_; // by operators of the pass
  std::vector<Written> written_;
};

} // namespace tessera::tracer
