#include "models/registry.h"

#include <set>

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "models/layers.h"

namespace tessera::models {
namespace {

std::int64_t unique_elements(const torch::nn::Module& module) {
  std::set<void*> seen;
  std::int64_t total = 0;
  for (const auto& parameter : module.parameters()) {
    if (seen.insert(parameter.unsafeGetTensorImpl()).second) {
      total += parameter.numel();
    }
  }
  return total;
}

constexpr const char* kSmallNcf = R"({"users": 50, "items": 40, "factors": 4, "first_layer": 16})";

struct Case {
  const char* name;
  const char* overrides;
};

class EveryFamily : public testing::TestWithParam<Case> {};

TEST_P(EveryFamily, CountsItsParametersAndLearns) {
  torch::manual_seed(1);
  const auto& [name, overrides] = GetParam();
  AnyModel model = make_model(name, overrides);
  EXPECT_EQ(unique_elements(*model.module), model.preset.parameters);
  const Tensors inputs = model.sample_inputs({2, 8, 6});
  const Tensors outputs = model.forward(inputs);
  EXPECT_EQ(outputs.at(0).size(0), 2);
  Tensors targets;
  if (model.preset.family == "ncf") {
    targets = {torch::arange(16).remainder(2).view({2, 8}).to(torch::kFloat)};
  } else {
    targets = {inputs.back()};
  }
  const auto loss = model.loss(outputs, targets);
  EXPECT_EQ(loss.dim(), 0);
  loss.backward();
  torch::NoGradGuard no_grad;
  for (auto& parameter : model.module->parameters()) {
    if (parameter.grad().defined()) {
      parameter.sub_(0.01 * parameter.grad());
      parameter.mutable_grad().zero_(); // a shared one is visited twice
    }
  }
  EXPECT_LT(model.loss(model.forward(inputs), targets).item<float>(), loss.item<float>());
  model.module->eval(); // no dropout
  EXPECT_EQ(
      model.training_loss(inputs, targets).item<float>(),
      model.loss(model.forward(inputs), targets).item<float>());
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    EveryFamily,
    testing::Values(
        Case{"gpt-tiny", "{}"},
        Case{"t5-tiny", "{}"},
        Case{"bert-tiny", "{}"},
        Case{"bert-tiny", R"({"roberta": true, "pad_token_id": 1})"},
        Case{"ncf", kSmallNcf}),
    [](const auto& info) { return "case" + std::to_string(info.index); });

TEST(Registry, TheSameSeedGivesTheSameModel) {
  torch::manual_seed(9);
  const auto a = make_model("gpt-tiny").module->parameters();
  torch::manual_seed(9);
  const auto b = make_model("gpt-tiny").module->parameters();
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(torch::equal(a[i], b[i])) << i;
  }
}

TEST(Registry, AWrongNumberOfInputsIsAClearError) {
  AnyModel model = make_model("t5-tiny");
  try {
    model.forward({torch::zeros({1, 2}, at::kLong)});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(
        error.what(), testing::HasSubstr("t5-tiny: expected 2 to 4 input tensors, found 1"));
  }
}

} // namespace
} // namespace tessera::models
