#pragma once

#include <torch/torch.h>

namespace tessera::testing {

/// Keeps gradients from what it is applied to, as a branch of a graph that nothing uses.
struct Unused : torch::autograd::Function<Unused> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return x.sum();
  }
  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext*,
      const torch::autograd::variable_list&) {
    return {at::Tensor()};
  }
};

/// A scalar whose backward reaches `x` and gives it no gradient.
inline at::Tensor unused(const at::Tensor& x) {
  return Unused::apply(x);
}

} // namespace tessera::testing
