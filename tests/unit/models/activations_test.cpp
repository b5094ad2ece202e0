#include "models/activations.h"

#include <cmath>
#include <functional>
#include <map>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::models {
namespace {

double by_erf(double x) {
  return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
}

double by_tanh(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

// The definitions, one number at a time.
const std::map<std::string, std::function<double(double)>>& definitions() {
  static const std::map<std::string, std::function<double(double)>> list = {
      {"gelu", by_erf},
      {"gelu_python", by_erf},
      {"gelu_10", [](double x) { return std::min(10.0, std::max(-10.0, by_erf(x))); }},
      {"gelu_new", by_tanh},
      {"gelu_fast", by_tanh},
      {"gelu_accurate", by_tanh},
      {"gelu_pytorch_tanh", by_tanh},
      {"quick_gelu", [](double x) { return x * sigmoid(1.702 * x); }},
      {"relu", [](double x) { return x > 0 ? x : 0; }},
      {"relu2", [](double x) { return x > 0 ? x * x : 0; }},
      {"relu6", [](double x) { return std::min(6.0, std::max(0.0, x)); }},
      {"leaky_relu", [](double x) { return x > 0 ? x : 0.01 * x; }},
      {"silu", [](double x) { return x * sigmoid(x); }},
      {"swish", [](double x) { return x * sigmoid(x); }},
      {"mish", [](double x) { return x * std::tanh(std::log1p(std::exp(x))); }},
      {"tanh", [](double x) { return std::tanh(x); }},
      {"sigmoid", sigmoid},
      {"linear", [](double x) { return x; }}};
  return list;
}

TEST(Activations, EachIsItsDefinition) {
  const auto x = torch::linspace(-12, 12, 97, at::kDouble);
  ASSERT_EQ(definitions().size(), activation_names().size());
  for (const std::string& name : activation_names()) {
    const auto& wanted = definitions().at(name);
    const auto y = activate(name, x);
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      const double at = x[i].item<double>();
      EXPECT_NEAR(y[i].item<double>(), wanted(at), 1e-12) << name << " of " << at;
    }
  }
}

TEST(Activations, AnotherNameIsAnError) {
  EXPECT_THROW(activate("prelu", torch::zeros({1})), ConfigError);
}

} // namespace
} // namespace tessera::models
