#include "tessera/autograd/weight_gradient_pass.h"

#include <algorithm>
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
    const std::vector<at::Tensor>& roots) const {
  if (order_ == nullptr) {
    return std::make_unique<WeightGradientPass>(roots);
  }
  return std::make_unique<WeightGradientPass>(
      targets_below(roots, nullptr), Awaited(), *order_, graph_);
}

bool WeightGradientPass::adds_once(const torch::autograd::Node* accumulator) const {
  const auto found = targets_.additions.find(accumulator);
  return found != targets_.additions.end() && found->second == 1;
}

void WeightGradientPass::defer(const at::Tensor& parameter, std::function<void()> addition) {
  deferred_.push_back({torch::autograd::impl::grad_accumulator(parameter), std::move(addition)});
}

bool WeightGradientPass::awaits(const torch::autograd::Node* accumulator) const {
  return std::any_of(deferred_.begin(), deferred_.end(), [&](const Deferred& product) {
    return product.accumulator.get() == accumulator;
  });
}

void WeightGradientPass::catch_up() {
  for (Deferred& product : std::exchange(deferred_, {})) {
    if (orders(product.accumulator.get())) {
      add(product.accumulator.get(), std::move(product.addition));
    } else {
      product.addition();
      tell_added(*product.accumulator);
    }
    product = {}; // its activations are free now
  }
}

} // namespace tessera
