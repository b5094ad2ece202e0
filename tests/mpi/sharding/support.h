#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "tessera/model/model_core.h"
#include "tessera/train/model_access.h"

#include "tests/mpi/runtime/support.h"

namespace tessera::testing {

constexpr double kNoClipping = 1e9;

/// Every parameter is divided, also the smallest.
inline Config sharded(int degree, int microbatches = 1) {
  Config config = config_of(1, microbatches);
  config.ddp = true;
  if (degree > 1) {
    config.sharded_data_parallel_degree = degree;
    config.sdp_param_persistence_threshold = 0;
    config.sdp_gradient_clipping = kNoClipping;
  }
  return config;
}

inline std::vector<int> degrees() {
  return world_size() == 2 ? std::vector<int>{2} : std::vector<int>{2, 4};
}

/// Layers of libtorch's own, whose calls nobody sees, of sizes that no degree divides; a parameter
/// used without a layer; a table; recurrent weights in one operator.
struct MixedImpl : torch::nn::Module {
  MixedImpl() {
    narrow = register_module("narrow", torch::nn::Linear(kWidth, 7));
    wide = register_module("wide", torch::nn::Linear(7, kWidth));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    table = register_module("table", torch::nn::Embedding(5, kWidth));
    memory = register_module(
        "memory", torch::nn::GRU(torch::nn::GRUOptions(kWidth, 5).batch_first(true)));
    attention = register_module(
        "attention",
        torch::nn::MultiheadAttention(torch::nn::MultiheadAttentionOptions(kWidth, 2)));
    head = register_module("head", torch::nn::Linear(5, kWidth));
    scale = register_parameter("scale", torch::full({kWidth}, 0.9));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto ids = (x.select(1, 0) > 0).to(torch::kLong) + 2;
    auto h = norm(x + wide(torch::tanh(narrow(x)))) * scale + table(ids);
    const auto sequence = torch::stack({h, x}, 1); // [rows, 2, width]
    const auto attended = std::get<0>(attention(h.unsqueeze(1), x.unsqueeze(1), x.unsqueeze(1)));
    const auto recalled = std::get<0>(memory(sequence)).select(1, 1);
    return head(recalled) + attended.squeeze(1) * scale.sum();
  }
  torch::nn::Linear narrow{nullptr}, wide{nullptr}, head{nullptr};
  torch::nn::LayerNorm norm{nullptr};
  torch::nn::Embedding table{nullptr};
  torch::nn::GRU memory{nullptr};
  torch::nn::MultiheadAttention attention{nullptr};
  torch::Tensor scale;
};
TESSERA_MODULE(Mixed);

/// A branch that only some ranks ever see, in turn; the others neither wait nor gather.
struct ByRankImpl : torch::nn::Module {
  ByRankImpl() {
    common = register_module("common", nn::Linear(kWidth, kWidth));
    rare = register_module("rare", Block());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto h = common(x);
    return rank() == turn % size() ? rare(h) : h;
  }
  int turn = 0;
  nn::Linear common{nullptr};
  Block rare{nullptr};
};
TESSERA_MODULE(ByRank);

/// What a `Net` has learnt in so many steps, each of which it knows by its `turn`; a rank has no
/// backward where `rests(turn)`. Collective over the world.
template <typename Net, typename Rests>
TensorMap trained_in_turns(int turns, Rests rests) {
  torch::manual_seed(7);
  Net net;
  DistributedModel model(net);
  auto optimizer = sgd(model.parameters());
  auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
    if (!rests(net->turn)) {
      model.backward(torch::mse_loss(model(x), y));
    }
  });
  for (int turn = 0; turn < turns; ++turn) {
    net->turn = turn;
    const Batch mine = mine_of(random_batches(16)(turn));
    optimizer.zero_grad();
    train_step(mine.x, mine.y);
    optimizer.step();
  }
  return model.state_dict();
}

/// Ranks take a branch in turn, and one of them has no backward in one step.
inline TensorMap trained_by_rank() {
  return trained_in_turns<ByRank>(4, [](int turn) { return rank() == 0 && turn == 2; });
}

/// Calls `check(name, make_net)` for modules that are called twice, parameters that are tied,
/// branches that the data choose, and modules that get no gradient.
template <typename Check>
void for_every_flow(Check check) {
  check("called twice", [] { return Reused(); });
  check("tied", [] { return Tied(); });
  check("branches", [] { return Control(); });
  check("unused", [] { return Unused(); });
}

/// What a training has after its first step, and after its second one without an interruption.
struct TwoSteps {
  TensorMap model;
  state::OptimizerState optimizer;
  TensorMap uninterrupted;
};

/// `Training` has `model`, `optimizer` and `step(number)`. Collective over the world.
template <typename Training>
TwoSteps two_steps(const Config& config) {
  init(config);
  const Ended ended;
  Training run;
  TwoSteps found;
  run.step(0);
  found.model = run.model.state_dict();
  found.optimizer = run.optimizer.state_dict();
  run.step(1);
  found.uninterrupted = run.model.state_dict();
  return found;
}

inline const sharding::ModelShards& shards_of(const Model& model) {
  return *train::ModelAccess::core(model)->shards();
}

inline void expect_same(
    const TensorMap& got,
    const TensorMap& wanted,
    const std::string& what,
    double tolerance) {
  ASSERT_EQ(got.size(), wanted.size()) << what;
  for (const auto& [name, tensor] : wanted) {
    ASSERT_TRUE(got.contains(name)) << what << ", " << name;
    EXPECT_LE(
        (got.at(name).to(torch::kDouble) - tensor.to(torch::kDouble)).abs().max().item<double>(),
        tolerance)
        << what << ", " << name;
  }
}

} // namespace tessera::testing
