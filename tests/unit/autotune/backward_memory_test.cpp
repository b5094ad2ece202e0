// What the planner predicts that a backward holds at most, beside what a real one then holds: a
// language model with a tied head, whole and as a stage that another rank waits for.
#include <memory>
#include <vector>

#include <torch/torch.h>

#include <gtest/gtest.h>

#include "tessera/autograd/weight_gradient.h"
#include "tessera/autograd/weight_gradient_pass.h"
#include "tessera/autotune/trace_model.h"
#include "tessera/cost/layer_table.h"
#include "tessera/nn/module/containers.h"

#include "bench/support/memory_count.h"
#include "tests/unit/planner/small_trace.h"

namespace tessera::autotune {
namespace {

constexpr std::int64_t kSequence = 32;
constexpr std::int64_t kWidth = 64;
constexpr std::int64_t kVocabulary = 700;
constexpr int kBlocks = 3;
constexpr int kBatch = 8;

bench::MemoryCount& memory() {
  static bench::MemoryCount& count = bench::MemoryCount::install();
  return count;
}

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    norm = register_module("norm", nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    qkv = register_module("qkv", nn::Linear(kWidth, 3 * kWidth));
    out = register_module("out", nn::Linear(kWidth, kWidth));
    wide = register_module("wide", nn::Linear(kWidth, 4 * kWidth));
    narrow = register_module("narrow", nn::Linear(4 * kWidth, kWidth));
  }
  torch::Tensor forward(torch::Tensor x) {
    const auto parts = qkv(norm(x)).chunk(3, -1);
    const auto scores = torch::matmul(parts[0], parts[1].transpose(1, 2)) / 8.0;
    x = x + out(torch::matmul(torch::softmax(scores, -1), parts[2]));
    return x + narrow(torch::gelu(wide(x)));
  }
  nn::LayerNorm norm{nullptr};
  nn::Linear qkv{nullptr};
  nn::Linear out{nullptr};
  nn::Linear wide{nullptr};
  nn::Linear narrow{nullptr};
};
TESSERA_MODULE(Block);

struct LanguageNetImpl : torch::nn::Module {
  LanguageNetImpl() {
    embedding = register_module("embedding", nn::Embedding(kVocabulary, kWidth));
    for (int i = 0; i < kBlocks; ++i) {
      list.emplace_back();
      blocks->push_back(list.back());
    }
    register_module("blocks", blocks);
  }
  torch::Tensor forward(torch::Tensor ids) {
    const auto x = blocks->forward<torch::Tensor>(embedding(ids));
    const auto logits = torch::linear(x, embedding->weight);
    return at::cross_entropy_loss(logits.flatten(0, 1), ids.flatten());
  }
  nn::Embedding embedding{nullptr};
  nn::Sequential blocks;
  std::vector<Block> list;
};
TESSERA_MODULE(LanguageNet);

torch::Tensor ids_of(std::int64_t samples) {
  return torch::randint(kVocabulary, {samples, kSequence}, torch::kLong);
}

cost::DescribedModel described(const cost::Cluster& cluster) {
  ModelSource source;
  source.name = "language";
  source.build = [] {
    auto net = std::make_shared<LanguageNetImpl>();
    BuiltModel built;
    built.root = net;
    built.forward = [net](std::int64_t samples) {
      return [net, samples] { net->forward(ids_of(samples)); };
    };
    return built;
  };
  TraceRequest request;
  request.global_batch_size = kBatch;
  return planner::describe_traced(trace_model(source, request), cluster);
}

cost::StageMemory predicted(int first, int last, int samples) {
  const cost::Cluster cluster = planner::measured_cluster(2);
  const cost::DescribedModel model = described(cluster);
  cost::Strategy strategy;
  strategy.microbatch_size = samples;
  strategy.boundaries = {0, kBlocks + 1};
  strategy.device_of_rank = {0};
  strategy.activation_checkpointing = false;
  const cost::LayerTable table(
      model, cluster, strategy, cost::runtime_constants(cluster, model.precision));
  return table.memory(first, last, {});
}

/// Runs a forward and its backward, whose weights have gradients to add to, and returns the most
/// that tensors held beyond what was there before.
template <typename Forward>
double most_of(bool awaited, const at::Tensor& seed, const Forward& forward) {
  const auto run = [&] {
    const WeightGradientScope in_place;
    const at::Tensor result = forward();
    WeightGradientPass pass({result}, {.end = awaited});
    torch::autograd::backward({result}, {seed.defined() ? seed : torch::ones_like(result)});
    pass.catch_up();
  };
  run(); // gradients are there from now on
  memory().restart();
  const std::int64_t before = memory().now();
  run();
  return static_cast<double>(memory().most() - before);
}

TEST(PredictedBackward, HoldsWhatOneOfAWholeModelHolds) {
  memory();
  for (const int samples : {1, 2, 8}) {
    LanguageNet net;
    const auto ids = ids_of(samples);
    const double held = most_of(false, {}, [&] { return net(ids); });
    const cost::StageMemory all = predicted(0, kBlocks + 1, samples);
    EXPECT_NEAR((all.activations + all.working) / held, 1, 0.05)
        << samples << " samples: " << all.activations << " and " << all.working << " predicted, "
        << held << " held";
  }
}

// The gradients of its weights wait for the end of the backward, and what they need with them.
TEST(PredictedBackward, HoldsMoreWhileAnotherRankWaits) {
  memory();
  for (const int blocks : {1, kBlocks}) {
    for (const bool awaited : {false, true}) {
      LanguageNet net;
      const int samples = kBatch;
      // The input's gradient is made too: another rank wants it.
      const auto x = torch::randn({samples, kSequence, kWidth}).requires_grad_();
      x.mutable_grad() = torch::zeros_like(x);
      const auto seed = torch::randn({samples, kSequence, kWidth});
      const auto of_seed = static_cast<double>(seed.nbytes()); // which the other rank sends
      const double held = of_seed + most_of(awaited, seed, [&] {
                            auto y = x;
                            for (int i = 0; i < blocks; ++i) {
                              y = net->list[static_cast<std::size_t>(i)](y);
                            }
                            return y;
                          });
      const cost::StageMemory all = predicted(1, 1 + blocks, samples);
      const double ratio = (all.activations + all.working) / held;
      if (awaited) {
        EXPECT_NEAR(ratio, 1, 0.05) << blocks << " blocks: " << all.activations << " and "
                                    << all.working << " predicted, " << held << " held";
      } else {
        EXPECT_GT(ratio, 1.08) << "what is put off can be told";
      }
    }
  }
}

} // namespace
} // namespace tessera::autotune
