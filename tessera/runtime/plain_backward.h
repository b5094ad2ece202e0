#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

/// A step's gradients come from `model.backward`: it divides them by the number of microbatches,
/// waits for the schedule and starts their averaging over replicas. A `loss.backward()` that a
/// script kept from its plain form does none of that, and its gradients are wrong without an error.
namespace tessera::runtime {

/// Returns whether this thread runs a step's user code and no backward of the library: a backward
/// that runs on it now was started by that code.
bool in_users_backward();

/// Throws: UserError that says what to write; `where` names what the backward reached.
[[noreturn]] void refuse_users_backward(const std::string& where);

/// Watches the parameters that a rank owns. An addition to a gradient inside of
/// a step that `model.backward` did not cause throws where it happens, so the
/// error carries rank, microbatch and module of the code that did it.
/// torch::autograd::grad adds to no gradient and is left alone.
///
/// Cost: one function call for each addition, one check of each parameter in a step.
/// Not collective. Threads: made and destroyed by the step thread; additions on
/// whichever thread runs the backward.
class PlainBackwardGuard {
 public:
  explicit PlainBackwardGuard(std::vector<std::pair<std::string, at::Tensor>> parameters);
  ~PlainBackwardGuard();
  PlainBackwardGuard(const PlainBackwardGuard&) = delete;
  PlainBackwardGuard& operator=(const PlainBackwardGuard&) = delete;

  /// Called before each step, since a script may have unfrozen parameters.
  void find_trainable();

 private:
  struct Watched {
    std::string name;
    at::Tensor tensor;
    std::shared_ptr<torch::autograd::Node> accumulator; // null: not trained so far
    std::uintptr_t hook = 0;
  };
  std::vector<Watched> parameters_;
};

} // namespace tessera::runtime
