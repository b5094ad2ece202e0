#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>
#include <torch/csrc/autograd/function.h>

#include "tessera/autograd/gradient_order.h"

namespace tessera::runtime {

/// Takes the gradients of a module call's inputs on the owner. The inputs hang
/// on it as non-leaf tensors, so that the module may change them in place.
struct InputCapture : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override;
  torch::autograd::variable_list captured;
};

/// What the owner keeps of a forward call until its backward.
struct CallRecord {
  std::shared_ptr<InputCapture> inputs; // null: no input needs a gradient
  std::vector<torch::Tensor> outputs; // those that need a gradient
  int module = -1;
  // Where a GradientOrder runs:
  GradientTargets targets; // below `outputs`
  GradientOrder::GraphPtr graph;
};

/// Which tensors of `value` need gradients: '1' or '0' each, in
/// for_each_tensor order.
std::string gradient_marks(const c10::IValue& value);

/// The value with its tensors cut from the graph.
c10::IValue cut(const c10::IValue& value);

/// The tensors of `value` marked in `needs_grad`.
std::vector<torch::Tensor> marked_tensors(const c10::IValue& value, const std::string& needs_grad);

/// Hangs the marked tensors of `value` on `node` as its outputs.
void hang(
    const c10::IValue& value,
    const std::string& needs_grad,
    const std::shared_ptr<torch::autograd::Node>& node);

} // namespace tessera::runtime
