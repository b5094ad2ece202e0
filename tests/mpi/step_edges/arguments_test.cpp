// The tracing pass runs the step function on microbatch 0; the step that follows must find its
// arguments as the script gave them.
#include "tests/mpi/step_edges/support.h"

namespace tessera::testing {
namespace {

/// Changes what it is given, as many public models do to save memory.
struct InPlaceImpl : torch::nn::Module {
  InPlaceImpl() {
    blocks = register_module("blocks", Chain());
  }
  torch::Tensor forward(torch::Tensor x) {
    x.mul_(0.5).add_(1);
    return blocks(x.clone());
  }
  Chain blocks{nullptr};
};
TESSERA_MODULE(InPlace);

TEST(Arguments, AModelThatChangesItsInputChangesItOnce) {
  for (const int pp : pipelines()) {
    for (const int microbatches : {1, 2}) {
      SCOPED_TRACE(text_of(pp, microbatches));
      const int replicas = world_size() / pp;
      torch::manual_seed(7);
      InPlace plain;
      const Batch seen = random_batches()(0);
      double wanted = 0;
      for (int i = 0; i < microbatches * replicas; ++i) {
        const Batch part = part_of(seen, microbatches * replicas, i);
        wanted += squared(plain(part.x), part.y).item<double>() / (microbatches * replicas);
      }

      Config config = config_of(pp, microbatches);
      config.trace_execution_times = true; // a second run of the step function
      init(config);
      const Ended ended;
      torch::manual_seed(7);
      DistributedModel model{InPlace()};
      auto forward = tessera::step(
          [&](torch::Tensor x, const torch::Tensor& y) { return squared(model(x), y); });
      const torch::NoGradGuard no_grad;
      const Batch mine = mine_of(random_batches()(0));
      double loss = 0;
      for (const double value :
           allgather(forward(mine.x, mine.y).reduce_mean().item<double>(), Group::kDP)) {
        loss += value / dp_size();
      }
      EXPECT_NEAR(loss, wanted, 1e-5 * wanted);
      if (pp_rank() == 0) {
        EXPECT_TRUE(mine.x.equal(mine_of(seen).x));
      }
    }
  }
}

/// Hands its blocks' outputs on in a list that it was given, and its input in its place.
struct EncoderBlockImpl : torch::nn::Module {
  EncoderBlockImpl() {
    block = register_module("block", Block());
  }
  torch::Tensor forward(torch::Tensor& x, std::vector<torch::Tensor>& skips) {
    const torch::Tensor out = block(x);
    skips.push_back(out * 2);
    x = x + 0.5 * out;
    return out;
  }
  Block block{nullptr};
};
TESSERA_MODULE(EncoderBlock);

struct UNetImpl : torch::nn::Module {
  UNetImpl() {
    first = register_module("first", EncoderBlock());
    second = register_module("second", EncoderBlock());
    last = register_module("last", Block());
  }
  torch::Tensor forward(torch::Tensor x) {
    std::vector<torch::Tensor> skips;
    first->forward(x, skips);
    torch::Tensor out = second->forward(x, skips);
    for (const torch::Tensor& skip : skips) {
      out = out + skip;
    }
    return last(out + x);
  }
  EncoderBlock first{nullptr}, second{nullptr};
  Block last{nullptr};
};
TESSERA_MODULE(UNet);

// A forward changes its caller's variables, also from another rank and when it is recomputed.
TEST(Arguments, WhatAForwardLeavesInItsArgumentsReachesItsCaller) {
  for (const int pp : pipelines()) {
    for (const bool recomputed : {false, true}) {
      SCOPED_TRACE(str(text_of(pp, 2), recomputed ? ", recomputed" : ""));
      const int parts = 2 * world_size() / pp;
      torch::manual_seed(7);
      UNet plain;
      const Batch seen = random_batches()(0);
      for (int i = 0; i < parts; ++i) {
        const Batch part = part_of(seen, parts, i);
        (squared(plain(part.x), part.y) / parts).backward();
      }

      init(placed(pp, 2, {{"first", 0}, {"second", std::min(1, pp - 1)}, {"last", pp - 1}}));
      const Ended ended;
      torch::manual_seed(7);
      UNet net;
      if (recomputed) {
        set_activation_checkpointing(net->first);
        set_activation_checkpointing(net->second);
      }
      DistributedModel model{net};
      auto train = tessera::step([&](torch::Tensor x, const torch::Tensor& y) {
        const torch::Tensor loss = squared(model(x), y);
        model.backward(loss);
        return loss;
      });
      const Batch mine = mine_of(random_batches()(0));
      train(mine.x, mine.y);
      const auto wanted = plain->named_parameters();
      for (const auto& [name, parameter] : model.local_parameters()) {
        EXPECT_LE(relative_error(parameter.grad(), wanted[name].grad()), 1e-5) << name;
      }
    }
  }
}

// What the function can reach from its arguments: nested, twice the same, with gradients.
TEST(Arguments, TheTraceSeesCopiesOfEverything) {
  if (world_size() < 2) {
    return; // nothing is traced
  }
  init(config_of(2, 1));
  const Ended ended;
  DistributedModel model{Chain()};
  using Nested = std::map<std::string, std::vector<torch::Tensor>>;
  int traced = 0;
  int calls = 0;
  StepOptions options;
  options.non_split_inputs = {1, 2};
  auto look = tessera::step(
      [&](torch::Tensor x, Nested nested, torch::Tensor whole, std::vector<double> numbers) {
        traced += is_tracing() ? 1 : 0;
        ++calls;
        auto [first, second] = std::tie(nested.at("x")[0], nested.at("x")[1]);
        EXPECT_TRUE(first.is_same(second));
        EXPECT_TRUE(whole.requires_grad());
        EXPECT_FALSE(x.requires_grad());
        EXPECT_EQ(first[0].item<double>(), 1);
        EXPECT_EQ(whole[0].item<double>(), 1);
        EXPECT_EQ(numbers, (std::vector<double>{2, 3}));
        {
          const torch::NoGradGuard no_grad;
          first.add_(1);
          whole.add_(1);
        }
        EXPECT_EQ(second[0].item<double>(), 2);
        return model(x);
      },
      options);
  const torch::Tensor shared = torch::ones({3});
  const torch::Tensor whole = torch::ones({3}, torch::requires_grad());
  const Nested nested = {{"x", {shared, shared}}};
  look(torch::ones({2, kWidth}), nested, whole, std::vector<double>{2, 3});
  EXPECT_EQ(traced, rank() == 0 ? 1 : 0);
  EXPECT_EQ(calls, traced + (pp_rank() == 0 ? 1 : 0));
  const double wanted = pp_rank() == 0 ? 2 : 1; // changed by the step, and by nothing else
  EXPECT_EQ(shared[0].item<double>(), wanted);
  EXPECT_EQ(whole[0].item<double>(), wanted);
}

} // namespace
} // namespace tessera::testing
