#include "tessera/autograd/f32_gradients.h"

#include <functional>
#include <vector>

#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include <gtest/gtest.h>

#include "tessera/autograd/weight_gradient.h"

namespace tessera {
namespace {

constexpr double kLarge = 256; // a bf16 number behind which 1 is half of the last bit
constexpr int kTimes = 16;

at::Tensor parameter_of(at::ScalarType type = at::kBFloat16) {
  return torch::ones({4, 3}, type).requires_grad_();
}

/// Adds `factor` to every element of the gradient.
void add(const at::Tensor& parameter, double factor) {
  (parameter * factor).sum().backward();
}

void add_large_and_small(const std::function<void(double)>& add) {
  add(kLarge);
  for (int i = 0; i < kTimes; ++i) {
    add(1);
  }
}

void expect_sum(const at::Tensor& parameter, double value = kLarge + kTimes) {
  ASSERT_TRUE(parameter.grad().defined());
  const auto gradient =
      parameter.grad().is_sparse() ? parameter.grad().to_dense() : parameter.grad();
  EXPECT_TRUE(gradient.equal(torch::full_like(gradient, value))) << gradient;
  EXPECT_EQ(gradient.scalar_type(), at::kFloat);
}

TEST(F32Gradients, KeepWhatSixteenBitsLose) {
  const auto parameter = parameter_of();
  const auto alone = parameter_of();
  const F32Gradients sums({parameter});
  add_large_and_small([&](double factor) { add(parameter, factor); });
  add_large_and_small([&](double factor) { add(alone, factor); });
  expect_sum(parameter);
  EXPECT_TRUE(alone.grad().equal(torch::full_like(alone, kLarge))); // the small ones are gone
}

TEST(F32Gradients, OfProductsAndLookUpsInPlace) {
  for (const at::ScalarType type : {at::kBFloat16, at::kFloat}) {
    const auto weight = parameter_of(type);
    const auto table = parameter_of(type);
    const F32Gradients sums({weight, table});
    const auto ids = torch::arange(4);
    add_large_and_small([&](double factor) {
      at::Tensor loss;
      {
        const WeightGradientScope scope;
        const auto row = torch::full({1, 3}, factor, type);
        loss = row.mm(weight.t()).sum() + (torch::embedding(table, ids) * factor).sum();
      }
      const WeightGradientPass pass({loss});
      loss.backward();
    });
    expect_sum(weight);
    expect_sum(table);
  }
}

TEST(F32Gradients, InTheOrderOfMicrobatches) {
  const auto weight = parameter_of();
  const F32Gradients sums({weight});
  GradientOrder order;
  order.begin({weight}, {1, 0});
  std::vector<at::Tensor> losses;
  for (const double factor : {1.0, kLarge}) {
    const WeightGradientScope scope;
    const auto row = torch::full({1, 3}, factor, at::kBFloat16);
    losses.push_back(row.mm(weight.t()).sum() + (weight * factor).sum() * 0);
  }
  std::vector<GradientOrder::GraphPtr> graphs;
  for (int i = 0; i < 2; ++i) {
    graphs.push_back(order.expect(i, targets_below({losses[i]}, nullptr)));
  }
  for (int i = 0; i < 2; ++i) {
    order.started(i);
    {
      WeightGradientPass pass(
          targets_below({losses[i]}, nullptr), WeightGradientPass::Awaited(), order, graphs[i]);
      losses[i].backward();
    }
    order.ended(*graphs[i]);
  }
  order.finish();
  expect_sum(weight, kLarge + 1);
}

TEST(F32Gradients, OfSparseLookUps) {
  const auto table = parameter_of();
  const F32Gradients sums({table});
  const auto ids = torch::arange(4);
  add_large_and_small([&](double factor) {
    (torch::embedding(table, ids, -1, false, /*sparse=*/true) * factor).sum().backward();
  });
  EXPECT_TRUE(table.grad().is_sparse());
  expect_sum(table);
}

TEST(F32Gradients, OfAScriptsOwnAndOfFrozenOnes) {
  const auto given = parameter_of();
  const auto frozen = parameter_of().detach();
  const auto unreached = parameter_of();
  F32Gradients sums({given, frozen, unreached});
  given.mutable_grad() = torch::full_like(given.detach(), kLarge);
  frozen.requires_grad_();
  sums.find_trainable();
  for (int i = 0; i < kTimes; ++i) {
    add(given, 1);
  }
  add_large_and_small([&](double factor) { add(frozen, factor); });
  expect_sum(given);
  expect_sum(frozen);
  EXPECT_FALSE(unreached.grad().defined());
}

TEST(F32Gradients, WithHistory) {
  const auto parameter = parameter_of();
  const F32Gradients sums({parameter});
  (parameter * parameter).sum().backward({}, /*keep_graph=*/true, /*create_graph=*/true);
  EXPECT_EQ(parameter.grad().scalar_type(), at::kFloat);
  EXPECT_TRUE(parameter.grad().requires_grad());
  const auto second = torch::autograd::grad({parameter.grad().sum()}, {parameter}).at(0);
  EXPECT_TRUE(second.equal(torch::full_like(second, 2)));
}

TEST(F32Gradients, EndWithTheirOwner) {
  const auto parameter = parameter_of();
  {
    const F32Gradients sums({parameter});
    EXPECT_TRUE(adds_in_f32(*torch::autograd::impl::grad_accumulator(parameter)));
  }
  add(parameter, 1);
  EXPECT_EQ(parameter.grad().scalar_type(), at::kBFloat16);
}

} // namespace
} // namespace tessera
