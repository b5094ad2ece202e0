#include "tessera/runtime/call_record.h"

#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "tessera/base/error.h"
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

std::string gradient_marks(const c10::IValue& value) {
  std::string marks;
  for_each_tensor(
      value, [&](const at::Tensor& tensor) { marks += tensor.requires_grad() ? '1' : '0'; });
  return marks;
}

c10::IValue cut(const c10::IValue& value) {
  return map_tensors(value, [](const at::Tensor& tensor) { return tensor.detach(); });
}

std::vector<torch::Tensor> marked_tensors(const c10::IValue& value, const std::string& needs_grad) {
  std::vector<torch::Tensor> tensors;
  std::size_t at = 0;
  for_each_tensor(value, [&](const at::Tensor& tensor) {
    if (needs_grad.at(at++) == '1') {
      tensors.push_back(tensor);
    }
  });
  TESSERA_CHECK(at == needs_grad.size());
  return tensors;
}

void hang(
    const c10::IValue& value,
    const std::string& needs_grad,
    const std::shared_ptr<torch::autograd::Node>& node) {
  for (torch::Tensor& tensor : marked_tensors(value, needs_grad)) {
    torch::autograd::set_history(tensor, node);
  }
}

} // namespace tessera::runtime
