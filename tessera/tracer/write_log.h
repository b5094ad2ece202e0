#pragma once

#include <functional>
#include <unordered_set>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <torch/nn/module.h>

namespace tessera::tracer {

/// Undoes what operators of a pass change in place: tensors that were there before the pass, such
/// as members (`memory_.copy_(x)`) and what a step function captured. Parameters, their gradients
/// and buffers are left alone. A tensor's memory is copied before its first change.
/// Threads: the thread of the pass.
class WriteLog {
 public:
  explicit WriteLog(const std::vector<torch::nn::Module*>& roots);

  /// Runs an operator of the pass with `run`, which leaves the results on the stack. `owner` says
  /// whose state a tensor of before the pass is that the operator writes; nullptr: nobody's.
  void operate(
      const c10::OperatorHandle& op,
      torch::jit::Stack* stack,
      const std::function<void()>& run,
      const std::function<const torch::nn::Module*(const at::Tensor&)>& owner);

  /// Puts back what was changed, and begins anew. Returns the owners of what somebody still has: a
  /// tensor that is gone was made during the pass, by something else than an operator.
  std::vector<const torch::nn::Module*> undo();

 private:
  struct Written {
    c10::Storage storage; // keeps the memory
    at::Tensor bytes; // all of it, as a tensor
    at::Tensor saved; // as it was
    const torch::nn::Module* owner;
  };
  bool is_old(const at::Tensor& tensor) const;
  void save(const at::Tensor& tensor, const torch::nn::Module* owner);

  std::unordered_set<const c10::StorageImpl*> of_model_;
  std::unordered_set<const c10::StorageImpl*> made_; // by operators of the pass
  std::vector<Written> written_;
};

} // namespace tessera::tracer
