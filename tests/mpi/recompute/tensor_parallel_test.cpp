// Activation checkpointing and offloading of layers that are divided over ranks, in a line and on a
// mesh: collectives of a recomputed forward run inside of the backward, and the numbers are those
// without.
#include <gmock/gmock.h>

#include "tessera/context/context.h"
#include "tessera/offload/offloader.h"
#include "tessera/recompute/attentions.h"

#include "models/gpt.h"
#include "models/presets.h"
#include "tests/mpi/runtime/support.h"
#include "tests/support/counting_tokens.h"

namespace tessera::testing {
namespace {

constexpr int kVocabulary = 32;
constexpr int kTokens = 16;
constexpr int kSteps = 4;

models::Gpt make_gpt(const std::string& strategy) {
  auto options = std::get<models::GptOptions>(models::find_preset("gpt-tiny").options);
  options.vocab_size = kVocabulary;
  options.n_positions = kTokens;
  options.n_embd = 32;
  options.n_layer = 4;
  options.n_head = 4;
  options.dropout = 0.1;
  const tensor_parallelism marked;
  models::Gpt net(options);
  if (!strategy.empty()) {
    int flagged = 0;
    for (const auto& module : net->modules()) {
      if (dynamic_cast<nn::SequentialImpl*>(module.get()) != nullptr) {
        set_activation_checkpointing(*module, {.strategy = strategy});
        ++flagged;
      }
    }
    EXPECT_EQ(flagged, 1);
  }
  return net;
}

Batch tokens_of(int step) {
  return counting_tokens(step, 32, kTokens, kVocabulary);
}

struct Case {
  std::string kind; // "1d" or "2d"
  std::string optimize;
  int pp;
  bool prescaled;
  std::string mode;
};

std::vector<Case> cases() {
  std::vector<Case> list = {
      {"1d", "speed", 1, false, "dynamic"},
      {"1d", "memory", 1, true, "dynamic"},
      {"2d", "memory", 1, true, "dynamic"},
      {"2d", "memory", 1, false, "dynamic"}};
  if (world_size() >= 4) {
    list.push_back({"1d", "memory", 2, true, "dynamic"});
    list.push_back({"1d", "speed", 2, false, "static"});
    list.push_back({"1d", "speed", 2, true, "fast"});
    list.push_back({"2d", "memory", 2, true, "dynamic"});
  }
  return list;
}

Config config_of_case(const Case& wanted) {
  Config config = config_of(wanted.pp, 2);
  config.tensor_parallel_degree = world_size() / wanted.pp;
  config.tensor_parallel_kind = wanted.kind;
  config.optimize = wanted.optimize;
  config.prescaled_batch = wanted.prescaled;
  config.ddp = true;
  config.transport_buffer_bytes = 16 << 20;
  config.static_mode = wanted.mode != "dynamic";
  config.static_mode_steps = config.static_mode ? 1 : 5;
  config.fast_mode = wanted.mode == "fast";
  return config;
}

/// Does not use all that it is given.
struct TakesOneImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& /*unused*/) {
    return torch::tanh(x);
  }
};
TESSERA_MODULE(TakesOne);

struct PartlyUsedImpl : torch::nn::Module {
  PartlyUsedImpl() {
    plain = register_module("plain", nn::Linear(kWidth, kWidth));
    const tensor_parallelism marked;
    used = register_module("used", nn::Linear(kWidth, kWidth));
    unused = register_module("unused", nn::Linear(kWidth, kWidth));
    norm = register_module("norm", nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
    last = register_module("last", TakesOne());
    set_activation_checkpointing(last, {.strategy = "each"});
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return last(used(x), norm(unused(plain(x))));
  }
  nn::Linear plain{nullptr}, used{nullptr}, unused{nullptr};
  nn::LayerNorm norm{nullptr};
  TakesOne last{nullptr};
};
TESSERA_MODULE(PartlyUsed);

// What a region ignores gets no gradient, not zeros, by which an optimizer lets parameters decay.
TEST(RecomputeTensorParallel, WhatARegionDoesNotUseGetsNoGradient) {
  for (const Case& wanted : cases()) {
    if (wanted.pp > 1) {
      continue;
    }
    init(config_of_case(wanted));
    const Ended ended;
    torch::manual_seed(7);
    DistributedModel model{PartlyUsed()};
    DistributedOptimizer optimizer(
        torch::optim::SGD(model.parameters(), torch::optim::SGDOptions(0.1).weight_decay(0.1)));
    const TensorMap before = model.state_dict();
    auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
      auto loss = torch::mse_loss(model(x), y);
      model.backward(loss);
      return loss;
    });
    const Batch mine = part_of(random_batches(32)(0), data_size(), data_rank());
    train_step(mine.x, mine.y);
    optimizer.step();
    for (const auto& [name, tensor] : model.state_dict()) {
      EXPECT_EQ(tensor.equal(before.at(name)), !name.starts_with("used."))
          << name << ", " << wanted.kind << ", " << wanted.optimize << wanted.prescaled;
    }
  }
}

TEST(RecomputeTensorParallel, NumbersAreThoseWithoutIt) {
  for (const Case& wanted : cases()) {
    const auto train = [&](const std::string& strategy, bool offloads, bool attentions = false) {
      Config config = config_of_case(wanted);
      config.checkpoint_attentions = attentions;
      config.offload_activations = offloads;
      if (offloads) {
        config.activation_loading_horizon = 1;
      }
      return train_distributed(
          config, [&] { return make_gpt(strategy); }, tokens_of, kSteps, token_loss);
    };
    const std::string what =
        str(wanted.kind,
            ", ",
            wanted.optimize,
            ", pp ",
            wanted.pp,
            ", prescaled ",
            wanted.prescaled,
            ", ",
            wanted.mode);
    const Trained kept = train("", false);
    for (const char* strategy : {"each", "group_2", "selective"}) {
      expect_equal(train(strategy, false), kept, what + ", " + strategy, 1e-6);
    }
    expect_equal(train("each", true), kept, what + ", offloaded", 1e-6);
    expect_equal(train("selective", true), kept, what + ", selective, offloaded", 1e-6);
    expect_equal(train("", false, true), kept, what + ", attentions", 1e-6);
    expect_equal(train("", true, true), kept, what + ", attentions, offloaded", 1e-6);
  }
}

/// Runs one step with checkpoint_attentions; the attentions that each rank recomputed, and what
/// rank 0 warned of.
std::pair<std::vector<std::int64_t>, std::string> attentions_of_step(const Case& wanted, bool on) {
  Config config = config_of_case(wanted);
  config.checkpoint_attentions = on;
  init(config);
  const Ended ended;
  DistributedModel model(make_gpt(""));
  auto train_step = tessera::step(
      [&](torch::Tensor x, torch::Tensor y) { model.backward(token_loss(model(x), y)); });
  const Batch mine = part_of(tokens_of(0), data_size(), data_rank());
  ::testing::internal::CaptureStderr();
  train_step(mine.x, mine.y);
  return {
      allgather(recompute::attentions_run(), Group::kPP), ::testing::internal::GetCapturedStderr()};
}

// Every layer's attention, under every distribution, on the pipeline rank that has it.
TEST(RecomputeTensorParallel, TheKeyRecomputesTheAttentionOfEveryLayer) {
  for (const Case& wanted : cases()) {
    EXPECT_THAT(attentions_of_step(wanted, false).first, ::testing::Each(0));
    const auto [ran, warned] = attentions_of_step(wanted, true);
    std::int64_t all = 0;
    for (const std::int64_t of_rank : ran) {
      all += of_rank;
    }
    EXPECT_EQ(all, 2 * 4) << wanted.kind; // microbatches, layers
    EXPECT_THAT(warned, ::testing::Not(::testing::HasSubstr("checkpoint_attentions")));
  }
}

// The same of the plain models of a pipeline without tensor parallelism, and nothing to recompute.
TEST(RecomputeTensorParallel, PlainModelsHaveAttentionsAndOthersAreToldThatTheyHaveNone) {
  Config config = config_of(2, 2);
  config.checkpoint_attentions = true;
  for (const bool attends : {true, false}) {
    init(config);
    const Ended ended;
    std::string warned;
    const auto step_of = [&](auto& model, const auto& loss) {
      auto train_step =
          tessera::step([&](torch::Tensor x, torch::Tensor y) { model.backward(loss(x, y)); });
      const Batch mine = part_of(tokens_of(0), dp_size(), dp_rank());
      ::testing::internal::CaptureStderr();
      train_step(mine.x, mine.y);
      warned = ::testing::internal::GetCapturedStderr();
    };
    if (attends) {
      models::Gpt net = [] {
        auto options = std::get<models::GptOptions>(models::find_preset("gpt-tiny").options);
        options.vocab_size = kVocabulary;
        options.n_positions = kTokens;
        options.n_layer = 4;
        return models::Gpt(options);
      }();
      DistributedModel model(net);
      step_of(model, [&](const auto& x, const auto& y) { return token_loss(model(x), y); });
    } else {
      nn::Sequential net{nn::Linear(kTokens, 8), nn::Linear(8, 8)};
      DistributedModel model(net);
      step_of(model, [&](const auto& x, const auto& /*y*/) {
        return model(x.to(torch::kFloat)).pow(2).mean();
      });
    }
    std::int64_t ran = 0;
    for (const std::int64_t of_rank : allgather(recompute::attentions_run(), Group::kPP)) {
      ran += of_rank;
    }
    EXPECT_EQ(ran, attends ? 2 * 4 : 0);
    const bool tells = !attends && rank() == 0;
    EXPECT_EQ(warned.find("checkpoint_attentions has no effect") != std::string::npos, tells)
        << warned;
  }
}

/// What a step of a flagged model, or of one whose blocks are, moves to each rank's file.
std::vector<std::int64_t> moved(Config config, const std::function<models::Gpt()>& make) {
  config.offload_activations = true;
  config.activation_loading_horizon = 1;
  init(config);
  const Ended ended;
  DistributedModel model(make());
  auto train_step = tessera::step(
      [&](torch::Tensor x, torch::Tensor y) { model.backward(token_loss(model(x), y)); });
  const Batch mine = part_of(tokens_of(0), data_size(), data_rank());
  train_step(mine.x, mine.y);
  return allgather(context().offloader->counters().copies_out);
}

// The modules that were flagged are not those that run.
TEST(RecomputeTensorParallel, FlagsOfReplacedModulesAreTheReplacements) {
  const auto flagged_blocks = [] {
    models::Gpt net = make_gpt("");
    for (const auto& module : net->modules()) {
      if (dynamic_cast<models::GptBlockImpl*>(module.get()) != nullptr) {
        set_activation_checkpointing(*module);
      }
    }
    return net;
  };
  for (const char* kind : {"1d", "2d"}) {
    const Case wanted{kind, "memory", 1, true, "dynamic"};
    const std::vector<std::function<models::Gpt()>> makes = {
        [] { return make_gpt("each"); }, flagged_blocks};
    for (const auto& make : makes) {
      for (const std::int64_t copies : moved(config_of_case(wanted), make)) {
        // Inputs of four layers, of two microbatches; the last layer's of the second one stays.
        EXPECT_EQ(copies, 2 * 4 - 1) << kind;
      }
    }
  }
}

} // namespace
} // namespace tessera::testing
