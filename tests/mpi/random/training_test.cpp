// GPT with dropout: first weights to the bit and losses within rounding, for every layout.
#include <algorithm>

#include "tessera/train/step_numbers.h"

#include "tests/mpi/random/support.h"
#include "tests/support/uneven_gpt.h"

namespace tessera::testing {
namespace {

constexpr int kSamples = 16;
constexpr int kSteps = 3;

models::Gpt made_gpt() {
  models::GptOptions options = uneven_gpt_options();
  options.dropout = 0.5;
  const tensor_parallelism marked;
  return models::Gpt(options);
}

Batch tokens_of(int step) {
  const auto start = (torch::arange(kSamples) * 7 + step * 5).unsqueeze(1);
  return counting_from(start, kTokens, kVocabulary);
}

TensorMap weights_of(const torch::nn::Module& net) {
  TensorMap weights;
  for (const auto& item : net.named_parameters()) {
    weights[item.key()] = item.value().detach().clone();
  }
  return weights;
}

struct Run {
  std::vector<double> losses;
  TensorMap first; // weights
};

/// One process and one microbatch. Step 0 computes no gradients.
Run plain() {
  torch::manual_seed(kSeed);
  auto net = made_gpt();
  Run run;
  run.first = weights_of(*net);
  std::vector<torch::Tensor> parameters;
  for (const auto& parameter : net->parameters()) { // lists the tied one twice
    if (std::none_of(parameters.begin(), parameters.end(), [&](const auto& known) {
          return known.is_same(parameter);
        })) {
      parameters.push_back(parameter);
    }
  }
  torch::optim::SGD optimizer(parameters, 0.1);
  train::StepNumbers numbers;
  for (int step = 0; step < kSteps; ++step) {
    const random::StreamScope scope(plain_stream(numbers.draws(/*learns=*/step > 0)));
    const Batch batch = tokens_of(step);
    if (step == 0) {
      const torch::NoGradGuard no_grad;
      run.losses.push_back(token_loss(net(batch.x), batch.y).item<double>());
      continue;
    }
    optimizer.zero_grad();
    auto loss = token_loss(net(batch.x), batch.y);
    loss.backward();
    optimizer.step();
    run.losses.push_back(loss.item<double>());
  }
  return run;
}

struct Layout {
  int pp = 1;
  int tp = 1;
  int microbatches = 1;
  std::string kind = "1d";
  std::string optimize = "speed";
  bool prescaled = false;
  std::string mode = {}; // "static" or "fast"
  std::string recomputed = {}; // "", "each", "selective" or "attentions"

  std::string text() const {
    return str(
        "pp ",
        pp,
        ", tp ",
        tp,
        " of ",
        world_size(),
        " ranks, microbatches ",
        microbatches,
        ", ",
        kind,
        " ",
        optimize,
        prescaled ? " prescaled " : " ",
        mode,
        " ",
        recomputed);
  }
};

Config config_for(const Layout& layout) {
  Config config = independent(config_of(layout.pp, layout.microbatches));
  config.tensor_parallel_degree = layout.tp;
  config.tensor_parallel_kind = layout.kind;
  config.optimize = layout.optimize;
  config.prescaled_batch = layout.prescaled;
  config.transport_buffer_bytes = 16 << 20;
  config.static_mode = !layout.mode.empty();
  config.fast_mode = layout.mode == "fast";
  config.static_mode_steps = layout.mode.empty() ? 5 : 1;
  config.checkpoint_attentions = layout.recomputed == "attentions";
  return config;
}

void expect_plain(const Layout& layout) {
  SCOPED_TRACE(layout.text());
  init(config_for(layout)); // and with it the generator that first weights are drawn from
  const Ended ended;
  models::Gpt net = made_gpt();
  if (layout.recomputed == "each" || layout.recomputed == "selective") {
    for (const auto& module : net->modules()) {
      if (dynamic_cast<models::GptBlockImpl*>(module.get()) != nullptr) {
        set_activation_checkpointing(*module, {.strategy = layout.recomputed});
      }
    }
  }
  DistributedModel model{net};
  DistributedOptimizer optimizer(torch::optim::SGD(model.parameters(), 0.1));
  const Run wanted = plain();
  auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
    auto loss = token_loss(model(x), y);
    if (torch::GradMode::is_enabled()) {
      model.backward(loss);
    }
    return loss;
  });
  for (int step = 0; step < kSteps; ++step) {
    const torch::AutoGradMode gradients(step > 0);
    const Batch mine = part_of(tokens_of(step), data_size(), data_rank());
    optimizer.zero_grad();
    const double loss = train_step(mine.x, mine.y).reduce_mean().item<double>();
    double mean = 0;
    for (const double value : allgather(loss, Group::kDP)) {
      mean += value / dp_size();
    }
    EXPECT_NEAR(mean, wanted.losses[step], 1e-6 * wanted.losses[step]) << "step " << step;
    if (step > 0) {
      optimizer.step();
      continue;
    }
    const TensorMap first = model.state_dict();
    for (const auto& [name, weight] : wanted.first) {
      if (first.contains(name)) { // the tied one has one name
        EXPECT_TRUE(first.at(name).equal(weight)) << name;
      } else {
        EXPECT_EQ(name, "lm_head.weight");
      }
    }
  }
}

TEST(IndependentTraining, PipelinesReplicasAndMicrobatches) {
  for (const int pp : {1, 2}) {
    if (pp <= world_size()) {
      for (const int microbatches : {1, 2, 4}) {
        expect_plain({.pp = pp, .microbatches = microbatches});
      }
    }
  }
}

TEST(IndependentTraining, Recomputation) {
  for (const std::string recomputed : {"each", "selective", "attentions"}) {
    expect_plain({.pp = std::min(world_size(), 2), .microbatches = 2, .recomputed = recomputed});
  }
}

TEST(IndependentTraining, StaticAndFastMode) {
  if (world_size() > 1) {
    expect_plain({.pp = 2, .microbatches = 2, .mode = "static"});
    expect_plain({.pp = 2, .microbatches = 2, .mode = "fast"});
  }
}

TEST(IndependentTraining, TensorParallelism) {
  for (const int tp : {2, 4}) {
    if (tp > world_size() || tp > 3) { // of three heads
      continue;
    }
    for (const std::string optimize : {"speed", "memory"}) {
      for (const bool prescaled : {false, true}) {
        expect_plain({.tp = tp, .microbatches = 2, .optimize = optimize, .prescaled = prescaled});
      }
    }
    if (world_size() == 4) {
      expect_plain({.pp = 2, .tp = tp, .microbatches = 2});
    }
    expect_plain({.tp = tp, .microbatches = 2, .recomputed = "each"});
    expect_plain({.tp = tp, .microbatches = 1, .recomputed = "attentions"});
  }
}

TEST(IndependentTraining, Meshes) {
  for (const int tp : {2, 4}) {
    if (tp > world_size()) {
      continue;
    }
    for (const bool prescaled : {false, true}) {
      expect_plain({.tp = tp, .microbatches = 2, .kind = "2d", .prescaled = prescaled});
    }
    expect_plain({.tp = tp, .microbatches = 1, .kind = "2d", .recomputed = "attentions"});
  }
}

} // namespace
} // namespace tessera::testing
