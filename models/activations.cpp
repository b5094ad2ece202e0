#include "models/activations.h"

#include <functional>
#include <map>

#include <torch/torch.h>

#include "tessera/base/error.h"

namespace tessera::models {

namespace {

using Function = std::function<at::Tensor(const at::Tensor&)>;

at::Tensor gelu_by_tanh(const at::Tensor& x) {
  return at::gelu(x, "tanh");
}

at::Tensor gelu_by_erf(const at::Tensor& x) {
  return at::gelu(x);
}

const std::map<std::string, Function>& functions() {
  static const std::map<std::string, Function> list = {
      {"gelu", gelu_by_erf},
      {"gelu_python", gelu_by_erf},
      {"gelu_10", [](const at::Tensor& x) { return gelu_by_erf(x).clamp(-10, 10); }},
      {"gelu_new", gelu_by_tanh},
      {"gelu_fast", gelu_by_tanh},
      {"gelu_accurate", gelu_by_tanh},
      {"gelu_pytorch_tanh", gelu_by_tanh},
      {"quick_gelu", [](const at::Tensor& x) { return x * at::sigmoid(1.702 * x); }},
      {"relu", [](const at::Tensor& x) { return at::relu(x); }},
      {"relu2", [](const at::Tensor& x) { return at::square(at::relu(x)); }},
      {"relu6", [](const at::Tensor& x) { return x.clamp(0, 6); }},
      {"leaky_relu", [](const at::Tensor& x) { return at::leaky_relu(x, 0.01); }},
      {"silu", [](const at::Tensor& x) { return at::silu(x); }},
      {"swish", [](const at::Tensor& x) { return at::silu(x); }},
      {"mish", [](const at::Tensor& x) { return at::mish(x); }},
      {"tanh", [](const at::Tensor& x) { return at::tanh(x); }},
      {"sigmoid", [](const at::Tensor& x) { return at::sigmoid(x); }},
      {"linear", [](const at::Tensor& x) { return x; }}};
  return list;
}

} // namespace

at::Tensor activate(const std::string& name, const at::Tensor& x) {
  const auto found = functions().find(name);
  if (found == functions().end()) {
    throw ConfigError(tessera::str("there is no activation function \"", name, "\""));
  }
  return found->second(x);
}

} // namespace tessera::models
