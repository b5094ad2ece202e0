#include "tessera/runtime/plain_backward.h"

#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include "tessera/autograd/weight_gradient.h"
#include "tessera/base/error.h"

namespace tessera::runtime {

bool in_users_backward() {
  // The engine runs on this thread; the scope is open where a step runs user code, the pass where
  // the library runs a backward.
  return torch::autograd::get_current_graph_task_exec_info() != nullptr &&
         WeightGradientScope::active() && WeightGradientPass::current() == nullptr;
}

void refuse_users_backward(const std::string& where) {
  throw UserError(
      str("a backward that was started inside a step by loss.backward() or "
          "torch::autograd::backward reached ",
          where,
          "; its gradients would not be divided by the number of microbatches and "
          "not be averaged over replicas: write model.backward(loss) in the step "
          "function in its place"));
}

PlainBackwardGuard::PlainBackwardGuard(std::vector<std::pair<std::string, at::Tensor>> parameters) {
  for (auto& [name, tensor] : parameters) {
    Watched& watched = parameters_.emplace_back();
    watched.name = name;
    watched.tensor = tensor;
  }
  find_trainable();
}

PlainBackwardGuard::~PlainBackwardGuard() {
  for (const Watched& watched : parameters_) {
    if (watched.accumulator != nullptr) {
      watched.accumulator->del_post_hook(watched.hook);
    }
  }
}

void PlainBackwardGuard::find_trainable() {
  for (Watched& watched : parameters_) {
    if (!watched.tensor.requires_grad() ||
        (watched.accumulator != nullptr &&
         torch::autograd::impl::try_get_grad_accumulator(watched.tensor) == watched.accumulator)) {
      continue;
    }
    if (watched.accumulator != nullptr) { // of another type of the parameter
      watched.accumulator->del_post_hook(watched.hook);
    }
    watched.accumulator = torch::autograd::impl::grad_accumulator(watched.tensor);
    watched.hook = watched.accumulator->add_post_hook(
        std::make_unique<AdditionHook>(watched.accumulator.get(), [name = watched.name] {
          if (in_users_backward()) {
            refuse_users_backward("parameter '" + name + "'");
          }
        }));
  }
}

} // namespace tessera::runtime
