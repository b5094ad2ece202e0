#include "tessera/autograd/f32_gradients.h"

#include <algorithm>
#include <utility>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include "tessera/autograd/addition_hook.h"
#include "tessera/autograd/dispatch_mode.h"

namespace tessera {

namespace {

bool is_short(at::ScalarType type) {
  return type == at::kHalf || type == at::kBFloat16;
}

class WideningHook : public AdditionHook {
 public:
  // The tensor owns its accumulator only weakly, so the hook may hold the tensor: F32Gradients ends
  // both.
  WideningHook(const torch::autograd::Node* accumulator, const at::Tensor& parameter)
      : AdditionHook(accumulator, [parameter] { widen_gradient(parameter); }) {}
};

} // namespace

F32Gradients::F32Gradients(std::vector<at::Tensor> parameters) {
  for (at::Tensor& parameter : parameters) {
    if (is_short(parameter.scalar_type())) {
      parameters_.emplace_back().tensor = std::move(parameter);
    }
  }
  find_trainable();
}

F32Gradients::~F32Gradients() {
  for (const Parameter& parameter : parameters_) {
    if (parameter.accumulator != nullptr) {
      parameter.accumulator->del_post_hook(parameter.hook);
    }
  }
}

void F32Gradients::find_trainable() {
  for (Parameter& parameter : parameters_) {
    widen_gradient(parameter.tensor);
    if (parameter.accumulator != nullptr || !parameter.tensor.requires_grad()) {
      continue;
    }
    parameter.accumulator = torch::autograd::impl::grad_accumulator(parameter.tensor);
    parameter.hook = parameter.accumulator->add_post_hook(
        std::make_unique<WideningHook>(parameter.accumulator.get(), parameter.tensor));
  }
}

bool adds_in_f32(const torch::autograd::Node& accumulator) {
  const auto& hooks = accumulator.post_hooks();
  return std::any_of(hooks.begin(), hooks.end(), [](const auto& hook) {
    return dynamic_cast<const WideningHook*>(hook.get()) != nullptr;
  });
}

void widen_gradient(const at::Tensor& parameter) {
  at::Tensor& gradient = parameter.mutable_grad();
  if (gradient.defined() && is_short(gradient.scalar_type()) && !gradient.key_set().has(kModeKey)) {
    gradient = gradient.to(at::kFloat);
  }
}

at::TensorOptions f32_sum_options(const at::Tensor& parameter) {
  const auto type = parameter.scalar_type();
  return parameter.options().requires_grad(false).dtype(is_short(type) ? at::kFloat : type);
}

} // namespace tessera
