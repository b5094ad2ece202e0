#include "tessera/optim/adamw_8bit.h"

#include <map>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/optim/adamw_8bit_codec.h"
#include "tessera/optim/adamw_8bit_state.h"
#include "tessera/optim/stochastic_rounding.h"
#include "tessera/state/optimizer_state.h"

namespace tessera::optim {
namespace {

std::string error_of(AdamW8bit& optimizer) {
  try {
    optimizer.step();
  } catch (const UserError& error) {
    return error.what();
  }
  return {};
}

// What is small has f32 averages and gets torch's numbers.
TEST(AdamW8bitTest, SmallTensorsAreUpdatedAsByTorch) {
  torch::manual_seed(1);
  const auto mine = torch::randn({40, 100}, torch::requires_grad());
  const auto torchs = mine.detach().clone().requires_grad_();
  AdamW8bit optimizer({mine}, AdamW8bitOptions(0.01).weight_decay(0.1).betas({0.9, 0.95}));
  torch::optim::AdamW wanted(
      {torchs}, torch::optim::AdamWOptions(0.01).weight_decay(0.1).betas({0.9, 0.95}));
  for (int i = 0; i < 20; ++i) {
    mine.mutable_grad() = torch::randn({40, 100});
    torchs.mutable_grad() = mine.grad().clone();
    optimizer.step();
    wanted.step();
  }
  EXPECT_LT((mine - torchs).abs().max().item<double>(), 2e-6);
}

/// A network with two matrices of 8192 elements learns a function; the loss of its last steps.
double trained(bool eight_bits, bool rounded, std::uint64_t seed = 1) {
  torch::manual_seed(1);
  torch::nn::Sequential net(
      torch::nn::Linear(64, 128), torch::nn::Tanh(), torch::nn::Linear(128, 64));
  const auto x = torch::randn({256, 64});
  const auto y = torch::sin(x.roll(1, 1)) + 0.3 * x.roll(3, 1);
  if (rounded) {
    net->to(torch::kBFloat16);
  }
  std::map<const void*, StochasticRounding> roundings;
  for (const auto& item : net->named_parameters()) {
    roundings.try_emplace(
        item.value().unsafeGetTensorImpl(),
        seed,
        state::ElementPlaces::identity(item.key(), item.value().numel()));
  }
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (eight_bits) {
    auto made = std::make_unique<AdamW8bit>(
        net->parameters(), AdamW8bitOptions(3e-3).stochastic_rounding(rounded));
    made->round_by(
        [&](const at::Tensor& tensor) { return &roundings.at(tensor.unsafeGetTensorImpl()); });
    optimizer = std::move(made);
  } else {
    optimizer =
        std::make_unique<torch::optim::AdamW>(net->parameters(), torch::optim::AdamWOptions(3e-3));
  }
  double last = 0;
  constexpr int kSteps = 300;
  constexpr int kLast = 20;
  for (int i = 0; i < kSteps; ++i) {
    optimizer->zero_grad();
    // Products in f32: libtorch's in bf16 need not run on every processor.
    const auto w = net->parameters();
    const auto in = [&](std::size_t j) { return w[j].to(torch::kFloat); };
    const auto inner = torch::tanh(torch::nn::functional::linear(x, in(0), in(1)));
    const auto loss = torch::mse_loss(torch::nn::functional::linear(inner, in(2), in(3)), y);
    loss.backward();
    optimizer->step();
    last += i >= kSteps - kLast ? loss.item<double>() / kLast : 0;
  }
  return last;
}

TEST(AdamW8bitTest, ConvergesBesideF32) {
  const double wanted = trained(false, false);
  const double bytes = trained(true, false);
  const double rounded = trained(true, true);
  const std::string found = str("f32 ", wanted, ", in bytes ", bytes, ", and bf16 ", rounded);
  RecordProperty("losses", found);
  EXPECT_LT(wanted, 0.05) << found; // 0.6 at first
  EXPECT_NE(bytes, wanted) << found;
  EXPECT_LT(bytes, 1.1 * wanted) << found;
  EXPECT_LT(rounded, wanted + 0.01) << found;
  EXPECT_EQ(trained(true, true), rounded);
  EXPECT_NE(trained(true, true, 2), rounded);
}

TEST(AdamW8bitTest, StateTakesTwoBytesAndAScaleABlock) {
  const auto parameter = torch::zeros({64, 128}, torch::requires_grad());
  AdamW8bit optimizer({parameter});
  parameter.mutable_grad() = torch::ones({64, 128});
  optimizer.step();
  ASSERT_EQ(optimizer.state().size(), 1U);
  const auto& state = static_cast<const AdamW8bitParamState&>(*optimizer.state().begin()->second);
  const std::size_t bytes = state.exp_avg.bytes() + state.exp_avg_sq_root.bytes();
  EXPECT_EQ(bytes, 2 * (8192 + 4 * 8192 / 256));
  EXPECT_EQ(adamw_8bit_bytes(8192), bytes);
  EXPECT_EQ(adamw_8bit_bytes(4095), 8 * 4095);
}

// As a checkpoint does it, in f32 in between.
TEST(AdamW8bitTest, AStateThatWasSavedGoesOnAlike) {
  register_adamw_8bit_state();
  torch::manual_seed(1);
  const NamedTensors mine = {
      {"large", torch::randn({70, 90}, torch::requires_grad())},
      {"small", torch::randn({9}, torch::requires_grad())}};
  NamedTensors other;
  for (const auto& [name, tensor] : mine) {
    other.emplace_back(name, tensor.detach().clone().requires_grad_());
  }
  AdamW8bit first({mine[0].second, mine[1].second}, AdamW8bitOptions(0.02));
  AdamW8bit second({other[0].second, other[1].second});
  const auto update = [](AdamW8bit& optimizer, const NamedTensors& parameters, int seed) {
    torch::manual_seed(seed);
    for (const auto& [name, tensor] : parameters) {
      tensor.mutable_grad() = torch::randn(tensor.sizes());
    }
    optimizer.step();
  };
  update(first, mine, 1);
  update(first, mine, 2);
  auto state = state::capture(first, mine);
  EXPECT_EQ(state.kind, "AdamW8bit");
  EXPECT_EQ(state.parameters.at("large").at("exp_avg").toTensor().sizes(), mine[0].second.sizes());
  for (auto& [name, fields] : state.parameters) {
    for (auto& [field, value] : fields) {
      value = value.isTensor() ? c10::IValue(value.toTensor().clone()) : value;
    }
  }
  state::restore(second, std::move(state), other);
  for (std::size_t i = 0; i < mine.size(); ++i) {
    const torch::NoGradGuard no_grad;
    other[i].second.copy_(mine[i].second);
  }
  update(first, mine, 3);
  update(second, other, 3);
  for (std::size_t i = 0; i < mine.size(); ++i) {
    EXPECT_TRUE(other[i].second.equal(mine[i].second)) << mine[i].first;
  }
}

TEST(AdamW8bitTest, TensorsThatAreNotContiguousAreUpdated) {
  torch::manual_seed(1);
  const auto mine = torch::randn({90, 70}).t().requires_grad_();
  const auto plain = mine.detach().contiguous().requires_grad_();
  ASSERT_FALSE(mine.is_contiguous());
  mine.mutable_grad() = torch::randn({70, 90});
  plain.mutable_grad() = mine.grad().t().contiguous().t();
  const auto version = mine._version();
  AdamW8bit({mine}).step();
  AdamW8bit({plain}).step();
  EXPECT_TRUE(mine.equal(plain));
  EXPECT_GT(mine._version(), version);
}

TEST(AdamW8bitTest, WhatItCannotDoIsSaid) {
  const auto bf16 = torch::ones({10}, torch::kBFloat16).requires_grad_();
  bf16.mutable_grad() = torch::ones({10}, torch::kBFloat16);
  AdamW8bit plain({bf16});
  EXPECT_NE(error_of(plain).find("makes f32 masters"), std::string::npos) << error_of(plain);
  AdamW8bit nameless({bf16}, AdamW8bitOptions().stochastic_rounding(true));
  EXPECT_NE(error_of(nameless).find("go by its name"), std::string::npos) << error_of(nameless);
  const auto rows = torch::ones({4, 3}, torch::requires_grad());
  rows.mutable_grad() = torch::ones({4, 3}).to_sparse();
  AdamW8bit sparse({rows});
  EXPECT_NE(error_of(sparse).find("sparse gradient"), std::string::npos) << error_of(sparse);
}

} // namespace
} // namespace tessera::optim
