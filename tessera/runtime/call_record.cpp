#include "tessera/runtime/call_record.h"

#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "tessera/runtime/plain_backward.h"
#include "tessera/tensor/value.h"

namespace tessera::runtime {

torch::autograd::variable_list InputCapture::apply(torch::autograd::variable_list&& gradients) {
  if (in_users_backward()) {
    refuse_users_backward("the arguments of a module that another rank called");
  }
  captured = std::move(gradients);
  return {};
}

c10::IValue detached(const c10::IValue& value) {
  return map_tensors(value, [](const at::Tensor& tensor) { return tensor.detach(); });
}

void attach_grad_fn(
    const c10::IValue& value,
    const RequiresGradMask& mask,
    const std::shared_ptr<torch::autograd::Node>& node) {
  for (torch::Tensor& tensor : mask.select(value)) {
    torch::autograd::set_history(tensor, node);
  }
}

} // namespace tessera::runtime
