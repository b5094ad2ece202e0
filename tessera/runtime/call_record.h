#pragma once

#include <memory>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/function.h>

#include "tessera/autograd/gradient_order.h"
#include "tessera/runtime/requires_grad_mask.h"

namespace tessera::runtime {

/// Captures the gradients of a module call's inputs on the owner. It is the grad_fn of the inputs,
/// so these are no leaves and the module may change them in place.
struct InputCapture : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  torch::autograd::variable_list captured;
};

/// What the owner keeps of a forward call until its backward.
struct CallRecord {
  std::shared_ptr<InputCapture> inputs; // null: no input requires a gradient
  std::vector<torch::Tensor> outputs; // those that require a gradient
  // Used with the key "reproducible":
  GradientTargets targets; // below `outputs`
  GradientOrder::GraphPtr graph;
};

/// Returns the value with its tensors detached from the graph.
c10::IValue detached(const c10::IValue& value);

/// Makes the tensors of `value` that `mask` names outputs of `node`.
void attach_grad_fn(
    const c10::IValue& value,
    const RequiresGradMask& mask,
    const std::shared_ptr<torch::autograd::Node>& node);

} // namespace tessera::runtime
