#pragma once

#include <functional>
#include <utility>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

namespace tessera {

/// A hook on the node that adds to a parameter's gradient: calls `added` after every addition,
/// whether the engine made it, a product in place, or a deferred one.
class AdditionHook : public torch::autograd::FunctionPostHook {
 public:
  /// The events of a GradientOrder that the hook is called for.
  struct OnOrder {
    std::function<void()> complete; // no microbatch will add any more, but for late parts
    std::function<void()> before_late; // a part that was not announced is added next
  };

  /// `place`, where given, is asked when an addition in place finds no gradient: a dense tensor of
  /// the parameter's shape and kind that nobody else reads becomes the gradient, whatever its
  /// values; an undefined one leaves it to fresh memory.
  AdditionHook(
      const torch::autograd::Node* accumulator,
      std::function<void()> added,
      std::function<at::Tensor()> place = {},
      OnOrder order = {})
      : accumulator_(accumulator),
        added_(std::move(added)),
        place_(std::move(place)),
        order_(std::move(order)) {}
  torch::autograd::variable_list operator()(
      const torch::autograd::variable_list& outputs,
      const torch::autograd::variable_list& inputs) override;
  void added() const {
    added_();
  }
  at::Tensor place() const {
    return place_ ? place_() : at::Tensor();
  }
  void complete() const {
    if (order_.complete) {
      order_.complete();
    }
  }
  void before_late() const {
    if (order_.before_late) {
      order_.before_late();
    }
  }

 private:
  const torch::autograd::Node* accumulator_;
  std::function<void()> added_;
  std::function<at::Tensor()> place_;
  OnOrder order_;
};

/// Calls `visit` with every AdditionHook of an accumulator.
void for_each_addition_hook(
    const torch::autograd::Node& accumulator,
    const std::function<void(const AdditionHook&)>& visit);

/// Tells them of an addition that the engine did not make.
void tell_added(const torch::autograd::Node& accumulator);

} // namespace tessera
