#include "tessera/nn/managed/managed_stack.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "tessera/base/error.h"

namespace tessera::nn::managed {

namespace {

void add_to_grad(at::Tensor& parameter, const at::Tensor& gradient) {
  at::Tensor& grad = parameter.mutable_grad();
  if (grad.defined()) {
    grad.add_(gradient);
  } else {
    grad = gradient.clone();
  }
}

} // namespace

ManagedStack::ManagedStack(
    std::vector<DistributedTransformerLayer> layers,
    const Savings& savings,
    Update update)
    : modules_(std::move(layers)), savings_(savings), update_(std::move(update)) {
  if (modules_.empty()) {
    throw ConfigError("a stack of no layers; give it one or more");
  }
  if (savings.update_at_once != static_cast<bool>(update_)) {
    throw ConfigError(
        savings.update_at_once ? "Savings::update_at_once needs a function that updates a "
                                 "parameter by its gradient; pass it as `update`"
                               : "an `update` function was given; set Savings::update_at_once, or "
                                 "leave the function out and use the parameters' grad");
  }
  for (const DistributedTransformerLayer& layer : modules_) {
    layers_.emplace_back(layer, buffers_, savings_);
  }
}

void ManagedStack::reserve(const at::Tensor& x) {
  const auto layers = static_cast<std::int64_t>(layers_.size());
  const std::int64_t positions = x.numel() / x.size(-1);
  const std::int64_t activation =
      Buffers::stretch(x.numel(), static_cast<std::int64_t>(x.element_size()));
  const at::Device device = x.device();
  std::int64_t forward = 0;
  std::int64_t backward = 0;
  std::int64_t parameter = 0;
  for (const ManagedLayer& layer : layers_) {
    forward = std::max(forward, layer.forward_bytes(positions));
    backward = std::max(backward, layer.backward_bytes(positions));
    parameter = std::max(parameter, layer.parameter_bytes());
  }
  buffers_.reserve(Buffers::kCheckpoint, layers * activation, device);
  buffers_.reserve(Buffers::kForward, forward, device);
  buffers_.reserve(Buffers::kBackward, backward, device);
  buffers_.reserve(Buffers::kParameter, parameter, device);
  buffers_.reserve(Buffers::kConjunction, activation, device);
}

at::Tensor ManagedStack::forward(const at::Tensor& x) {
  const at::NoGradGuard no_grad;
  reserve(x);
  inputs_.clear();
  at::Tensor activation = x;
  for (ManagedLayer& layer : layers_) {
    // The result of the last layer is in the forward buffer, which the next one
    // resets: it is checkpointed first, and read from there.
    inputs_.push_back(buffers_.take(Buffers::kCheckpoint, x.sizes(), x.options()));
    inputs_.back().copy_(activation);
    activation = layer.forward(inputs_.back());
  }
  return activation;
}

at::Tensor ManagedStack::backward(const at::Tensor& gradient) {
  const at::NoGradGuard no_grad;
  TESSERA_CHECK(inputs_.size() == layers_.size(), "backward before its forward");
  buffers_.reset(Buffers::kConjunction);
  const at::Tensor between =
      buffers_.take(Buffers::kConjunction, gradient.sizes(), gradient.options());
  between.copy_(gradient);
  for (std::size_t i = layers_.size(); i-- > 0;) {
    buffers_.reset(Buffers::kParameter);
    const at::Tensor of_input =
        layers_[i].backward(inputs_[i], between, savings_.update_at_once ? update_ : add_to_grad);
    between.copy_(of_input);
  }
  inputs_.clear();
  return between;
}

} // namespace tessera::nn::managed
