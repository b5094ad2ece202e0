#include "tessera/deferred_init/delayed_init.h"

#include <thread>

#include <torch/torch.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/nn/module/containers.h"
#include "tessera/tracer/trace.h"

namespace tessera::tracer {
namespace {

using ::testing::HasSubstr;
namespace init = torch::nn::init;

// Layers with every kind of parameter and buffer that torch's own layers make.
struct MixedImpl : torch::nn::Module {
  MixedImpl() {
    linear = register_module("linear", nn::Linear(8, 8));
    embedding = register_module("embedding", nn::Embedding(10, 8));
    conv = register_module("conv", nn::Conv1d(torch::nn::Conv1dOptions(8, 8, 3).padding(1)));
    norm = register_module("norm", nn::BatchNorm1d(8));
    lstm = register_module("lstm", torch::nn::LSTM(8, 8));
    tied = register_parameter("tied", embedding->weight);
    {
      const torch::NoGradGuard no_grad;
      linear->weight.normal_(0, 0.02);
      linear->bias.zero_();
    }
    const auto place = torch::arange(4, torch::kFloat).unsqueeze(1);
    const auto scale = torch::exp(torch::arange(4, torch::kFloat) * -0.5);
    angles = register_buffer("angles", torch::cat({torch::sin(place * scale), place * scale}, 1));
    list = register_buffer("list", torch::tensor({1.0, 2.0, 3.0}));
    view = linear->weight.t();
  }
  torch::Tensor forward(torch::Tensor ids) {
    auto x = linear(embedding(ids)) + angles;
    x = norm(conv(x.transpose(1, 2)));
    x = std::get<0>(lstm(x.transpose(1, 2)));
    return torch::matmul(x, tied.t()).sum();
  }
  nn::Linear linear{nullptr};
  nn::Embedding embedding{nullptr};
  nn::Conv1d conv{nullptr};
  nn::BatchNorm1d norm{nullptr};
  torch::nn::LSTM lstm{nullptr};
  torch::Tensor tied, angles, list, view;
};
TESSERA_MODULE(Mixed);

Mixed build_delayed(std::uint64_t seed) {
  torch::manual_seed(seed);
  const DelayedInitScope scope;
  return Mixed();
}

TEST(DelayedInit, TakesNoMemoryAndKeepsShapes) {
  const DelayedInitScope scope;
  nn::Linear linear(1 << 20, 1 << 20); // 4 TiB
  EXPECT_TRUE(has_delayed(*linear));
  EXPECT_EQ(linear->weight.numel(), std::int64_t{1} << 40);
  EXPECT_TRUE(linear->weight.requires_grad());
  EXPECT_TRUE(linear->weight.is_leaf());
}

TEST(DelayedInit, AnySubsetHasTheValuesOfTheWhole) {
  Mixed all = build_delayed(3);
  Mixed some = build_delayed(3);
  Mixed other = build_delayed(4);
  materialize(*all);
  materialize(*other);
  const auto expected = all->named_parameters();
  auto parameters = some->parameters();
  std::reverse(parameters.begin(), parameters.end());
  for (const auto& parameter : parameters) {
    materialize({parameter});
  }
  for (const auto& item : some->named_parameters()) {
    EXPECT_FALSE(is_delayed(item.value())) << item.key();
    EXPECT_TRUE(torch::equal(item.value(), expected[item.key()])) << item.key();
  }
  EXPECT_TRUE(is_delayed(some->angles)) << "not asked for";
  EXPECT_FALSE(torch::equal(other->linear->weight, all->linear->weight));
  EXPECT_FALSE(torch::equal(all->linear->weight[0], all->linear->weight[1]));
}

TEST(DelayedInit, ValuesWithoutRandomnessEqualTheEagerOnes) {
  Mixed eager;
  Mixed delayed = build_delayed(1);
  materialize(*delayed);
  EXPECT_TRUE(torch::equal(delayed->angles, eager->angles));
  EXPECT_TRUE(torch::equal(delayed->list, eager->list));
  EXPECT_TRUE(torch::equal(delayed->linear->bias, eager->linear->bias));
  for (const auto& item : eager->named_buffers()) {
    const auto buffer = delayed->named_buffers()[item.key()];
    EXPECT_EQ(buffer.scalar_type(), item.value().scalar_type());
    EXPECT_TRUE(torch::equal(buffer, item.value())) << item.key();
  }
  // Kaiming's bound for 24 inputs of the convolution, and its spread.
  const double bound = 1 / std::sqrt(24.0);
  EXPECT_LE(delayed->conv->weight.abs().max().item<double>(), bound);
  EXPECT_NEAR(delayed->conv->weight.std().item<double>(), bound / std::sqrt(3.0), 0.02);
  EXPECT_NEAR(delayed->linear->weight.std().item<double>(), 0.02, 0.006);
}

TEST(DelayedInit, HandlesTiesAndGradientsWorkAfterwards) {
  Mixed model = build_delayed(2);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  // An accumulator with a hook, made while the parameter had no memory.
  int hooks = 0;
  model->linear->weight.register_hook([&](const torch::Tensor&) { ++hooks; });
  const auto accumulator = torch::autograd::impl::grad_accumulator(model->linear->weight);
  const torch::Tensor handle = model->linear->weight;

  materialize(*model);
  EXPECT_FALSE(has_delayed(*model));
  EXPECT_TRUE(handle.is_cpu());
  EXPECT_TRUE(handle.is_leaf());
  EXPECT_TRUE(handle.requires_grad());
  EXPECT_EQ(handle.data_ptr<float>(), model->linear->weight.data_ptr<float>());
  EXPECT_TRUE(model->tied.is_same(model->embedding->weight));
  materialize({model->view});
  EXPECT_EQ(model->view.data_ptr<float>(), handle.data_ptr<float>());
  EXPECT_TRUE(torch::equal(model->view, handle.t()));

  const torch::Tensor before = handle.detach().clone();
  const torch::Tensor ids = torch::arange(8).view({2, 4});
  model(ids).backward();
  EXPECT_EQ(hooks, 1);
  EXPECT_EQ(torch::autograd::impl::grad_accumulator(model->linear->weight), accumulator);
  for (const auto& item : model->named_parameters()) {
    ASSERT_TRUE(item.value().grad().defined()) << item.key();
    EXPECT_TRUE(item.value().grad().is_cpu()) << item.key();
  }
  optimizer.step();
  EXPECT_TRUE(torch::allclose(handle, before - 0.1 * handle.grad()));
}

TEST(DelayedInit, MaterializeLeavesTheRandomStateAlone) {
  Mixed model = build_delayed(2);
  torch::manual_seed(11);
  const torch::Tensor expected = torch::rand(4);
  torch::manual_seed(11);
  materialize(*model);
  EXPECT_TRUE(torch::equal(torch::rand(4), expected));
}

TEST(DelayedInit, ChangesAfterTheScopeCountToo) {
  Mixed model = build_delayed(2);
  {
    const torch::NoGradGuard no_grad;
    init::constant_(model->linear->weight, 0.5);
    model->linear->weight[1].mul_(torch::full({8}, 3.0));
  }
  model->to(torch::kDouble);
  EXPECT_TRUE(has_delayed(*model));
  materialize(*model);
  EXPECT_EQ(model->linear->weight.scalar_type(), torch::kDouble);
  EXPECT_EQ(model->linear->weight[0].sum().item<double>(), 4.0);
  EXPECT_EQ(model->linear->weight[1].sum().item<double>(), 12.0);
}

TEST(DelayedInit, EveryInitFunctionReplays) {
  std::vector<std::pair<std::string, std::function<void(torch::Tensor)>>> all{
      {"normal", [](auto w) { init::normal_(w); }},
      {"uniform", [](auto w) { init::uniform_(w); }},
      {"xavier_uniform", [](auto w) { init::xavier_uniform_(w); }},
      {"xavier_normal", [](auto w) { init::xavier_normal_(w); }},
      {"kaiming_normal", [](auto w) { init::kaiming_normal_(w); }},
      {"kaiming_uniform", [](auto w) { init::kaiming_uniform_(w); }},
      {"orthogonal", [](auto w) { init::orthogonal_(w); }},
      {"eye", [](auto w) { init::eye_(w); }},
      {"ones", [](auto w) { init::ones_(w); }}};
  for (const auto& [name, function] : all) {
    torch::Tensor w;
    {
      const DelayedInitScope scope;
      w = torch::empty({6, 6});
      function(w);
      ASSERT_TRUE(is_delayed(w)) << name;
    }
    materialize({w});
    EXPECT_TRUE(torch::isfinite(w).all().item<bool>()) << name;
    EXPECT_GT(w.abs().sum().item<float>(), 0) << name;
    if (name == "orthogonal") {
      EXPECT_TRUE(torch::allclose(torch::matmul(w, w.t()), torch::eye(6), 1e-4, 1e-5));
    } else if (name == "eye") {
      EXPECT_TRUE(torch::equal(w, torch::eye(6)));
    }
  }
}

TEST(DelayedInit, AnExplicitGeneratorDecidesTheValues) {
  const auto make = [](std::uint64_t seed) {
    auto generator = at::detail::createCPUGenerator(seed);
    const DelayedInitScope scope;
    return torch::empty(8).normal_(0, 1, generator);
  };
  std::vector<torch::Tensor> made{make(1), make(1), make(2)};
  materialize(made);
  EXPECT_TRUE(torch::equal(made[0], made[1]));
  EXPECT_FALSE(torch::equal(made[0], made[2]));
}

TEST(DelayedInit, NamedDevicesAndDisabledScopesAreEager) {
  const DelayedInitScope scope;
  EXPECT_FALSE(is_delayed(torch::ones(2, torch::kCPU)));
  EXPECT_FALSE(is_delayed(torch::tensor({1, 2})));
  EXPECT_TRUE(is_delayed(torch::ones(2)));
  EXPECT_TRUE(is_delayed(torch::ones(2, torch::ones(2).options())));
  {
    const DelayedInitScope eager(false);
    EXPECT_FALSE(is_delayed(torch::ones(2)));
    EXPECT_FALSE(has_delayed(*nn::Linear(2, 2)));
  }
  EXPECT_TRUE(is_delayed(torch::ones(2)));
  bool elsewhere = true;
  std::thread([&] { elsewhere = is_delayed(torch::ones(2)); }).join();
  EXPECT_FALSE(elsewhere);
}

TEST(DelayedInit, ConstantsMayChangeAfterUse) {
  torch::Tensor small = torch::ones(4);
  torch::Tensor large = torch::ones(1 << 20);
  torch::Tensor a, b;
  {
    const DelayedInitScope scope;
    a = torch::zeros(4).add_(small);
    b = torch::zeros(1 << 20).add_(large);
  }
  small.fill_(7);
  materialize({a});
  EXPECT_EQ(a.sum().item<float>(), 4);
  large.fill_(7);
  EXPECT_THROW(materialize({b}), ConfigError);
}

template <typename Run>
void expect_error(const Run& run, const std::string& text) {
  try {
    run();
    ADD_FAILURE() << "no error that says: " << text;
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr(text));
  }
}

TEST(DelayedInit, WhatCannotBeDelayedIsRefusedWithTheReason) {
  torch::Tensor real = torch::zeros(4);
  Mixed model = build_delayed(2);
  expect_error([&] { model->linear->bias.sum().item<float>(); }, "aten::item reads");
  expect_error(
      [&] { real.copy_(model->linear->bias.slice(0, 0, 4)); }, "into a tensor that has memory");
  expect_error([&] { model->linear->bias + torch::empty(8, torch::kMeta); }, "never have values");
  // libtorch's sparse_ reads the column numbers that it drew.
  expect_error(
      [&] {
        const DelayedInitScope scope;
        init::sparse_(torch::empty({6, 6}), 0.5);
      },
      "aten::item reads");
  materialize(*model);
  expect_error([&] { torch::ones({2, 8}).matmul(model->view); }, "take it anew");
}

TEST(DelayedInit, LongChainsOfOperationsAreFreed) {
  torch::Tensor table;
  {
    const DelayedInitScope scope;
    table = torch::zeros({100});
    for (int i = 0; i < 40000; ++i) {
      table.add_(1);
    }
    torch::Tensor dropped = torch::zeros({100});
    for (int i = 0; i < 40000; ++i) {
      dropped.add_(1);
    }
  }
  materialize({table});
  EXPECT_EQ(table[5].item<float>(), 40000);
}

TEST(DelayedInit, AModelTracesBeforeItIsMaterialized) {
  Mixed eager;
  Mixed delayed = build_delayed(2);
  const torch::Tensor ids = torch::arange(8).view({2, 4});
  const auto expected = trace(*eager, [&] { eager(ids); });
  const auto found = trace(*delayed, [&] { delayed(ids); });
  ASSERT_EQ(found.modules.size(), expected.modules.size());
  for (std::size_t i = 0; i < expected.modules.size(); ++i) {
    EXPECT_EQ(found.modules[i].first_call, expected.modules[i].first_call);
    EXPECT_EQ(found.modules[i].activation_bytes, expected.modules[i].activation_bytes)
        << expected.modules[i].path;
  }
  materialize(*delayed);
  EXPECT_FALSE(has_delayed(*delayed));
  EXPECT_EQ(delayed->norm->num_batches_tracked.item<std::int64_t>(), 0)
      << "the trace counted a batch";
}

} // namespace
} // namespace tessera::tracer
