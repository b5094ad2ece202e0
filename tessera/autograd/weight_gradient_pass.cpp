#include "tessera/autograd/weight_gradient_pass.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <torch/csrc/autograd/variable.h>

#include "tessera/autograd/addition_hook.h"

namespace tessera {

WeightGradientPass::WeightGradientPass(const std::vector<at::Tensor>& roots)
    : WeightGradientPass(roots, Awaited()) {}

WeightGradientPass::WeightGradientPass(const std::vector<at::Tensor>& roots, const Awaited& awaited)
    : targets_(targets_below(roots, awaited.node)), awaited_(awaited) {}

WeightGradientPass::WeightGradientPass(
    GradientTargets targets,
    const Awaited& awaited,
    GradientOrder& order,
    GradientOrder::GraphPtr graph)
    : targets_(std::move(targets)), awaited_(awaited), order_(&order), graph_(std::move(graph)) {}

WeightGradientPass* WeightGradientPass::current() {
  return static_cast<WeightGradientPass*>(BackwardPass::current());
}

std::unique_ptr<WeightGradientPass> WeightGradientPass::inside_of(
    const std::vector<at::Tensor>& roots) {
  auto inner = order_ == nullptr ? std::make_unique<WeightGradientPass>(roots)
                                 : std::make_unique<WeightGradientPass>(
                                       targets_below(roots, nullptr), Awaited(), *order_, graph_);
  inner->outer_ = this;
  return inner;
}

bool WeightGradientPass::adds_once(const torch::autograd::Node* accumulator) const {
  const auto found = targets_.additions.find(accumulator);
  return found != targets_.additions.end() && found->second == 1;
}

bool WeightGradientPass::reaches_once(const torch::autograd::Node* accumulator) const {
  const auto found = targets_.additions.find(accumulator);
  const auto direct = found == targets_.additions.end() ? 0 : found->second;
  const auto hidden =
      std::count_if(targets_.hidden.begin(), targets_.hidden.end(), [&](const at::Tensor& leaf) {
        return leaf.requires_grad() &&
               torch::autograd::impl::grad_accumulator(leaf).get() == accumulator;
      });
  return direct + hidden == 1;
}

void WeightGradientPass::freed(std::size_t bytes) {
  freed_ += bytes;
}

bool WeightGradientPass::may_hold(
    const at::Tensor& parameter,
    const std::vector<at::Tensor>& operands) const {
  if (outer_ == nullptr) {
    return true;
  }
  return outer_->held_ + held_bytes(operands) <= outer_->freed_ &&
         outer_->reaches_once(torch::autograd::impl::grad_accumulator(parameter).get());
}

void WeightGradientPass::defer(const at::Tensor& parameter, Deferral deferral) {
  if (outer_ != nullptr) {
    outer_->defer(parameter, std::move(deferral));
    return;
  }
  held_ += deferral.held;
  deferred_.push_back({torch::autograd::impl::grad_accumulator(parameter), std::move(deferral)});
}

bool WeightGradientPass::awaits(const torch::autograd::Node* accumulator) const {
  return (outer_ != nullptr && outer_->awaits(accumulator)) ||
         std::any_of(deferred_.begin(), deferred_.end(), [&](const Deferred& product) {
           return product.accumulator.get() == accumulator;
         });
}

void WeightGradientPass::catch_up() {
  for (Deferred& product : std::exchange(deferred_, {})) {
    Deferral& deferral = product.deferral;
    held_ -= deferral.held;
    if (deferral.as_the_engine) {
      deferral.compute();
    } else if (orders(product.accumulator.get())) {
      add(product.accumulator.get(), std::move(deferral.compute));
    } else {
      deferral.compute();
      tell_added(*product.accumulator);
    }
    product = {}; // its activations are free now
  }
}

std::size_t held_bytes(const std::vector<at::Tensor>& tensors) {
  return std::accumulate(
      tensors.begin(),
      tensors.end(),
      std::size_t{0},
      [](std::size_t sum, const at::Tensor& tensor) {
        return sum + (tensor.defined() && tensor.has_storage() ? tensor.storage().nbytes() : 0);
      });
}

void add_as_the_engine(torch::autograd::Node& accumulator, at::Tensor gradient) {
  torch::autograd::variable_list inputs;
  inputs.push_back(std::move(gradient));
  for (const auto& hook : accumulator.pre_hooks()) {
    inputs = (*hook)(inputs);
  }
  // An accumulator takes over the memory of a gradient that nobody else holds.
  auto outputs = accumulator(std::move(inputs));
  for (const auto& hook : accumulator.post_hooks()) {
    outputs = (*hook)(outputs, {});
  }
}

} // namespace tessera
