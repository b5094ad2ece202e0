#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tessera/optim/fused.h"

#include "tests/mpi/optim/support.h"

/// Training with shard_optimizer_state beside training without.
namespace tessera::testing {

struct Strategy {
  int pp = 1;
  int tp = 1;
  bool prescaled = false;
  bool fast = false; // static and fast mode
  bool reproducible = false;
  std::string text() const {
    return tessera::str(
        "pp ",
        pp,
        ", tp ",
        tp,
        prescaled ? " prescaled" : "",
        fast ? ", fast" : "",
        reproducible ? ", reproducible" : "");
  }
  /// Whether gradients are added up in one order.
  bool one_order() const {
    return pp == 1 || reproducible;
  }
};

inline std::vector<Strategy> strategies() {
  switch (world_size()) {
    case 2:
      return {{}, {.tp = 2}, {.tp = 2, .prescaled = true}};
    case 3:
      return {{}};
    default:
      return {
          {},
          {.pp = 2},
          {.pp = 2, .fast = true},
          {.pp = 2, .reproducible = true},
          {.tp = 2},
          {.tp = 2, .prescaled = true},
          {.pp = 2, .tp = 2}};
  }
}

inline Config config_of(const Strategy& strategy, bool sharded) {
  Config config = config_of(Layout{strategy.pp, strategy.tp});
  config.ddp = true;
  config.prescaled_batch = strategy.prescaled;
  config.shard_optimizer_state = sharded;
  config.reproducible = strategy.reproducible;
  if (strategy.fast) {
    config.static_mode = true;
    config.static_mode_steps = 1;
    config.fast_mode = true;
  }
  return config;
}

/// Replicas with data of their own, each with kMicrobatches.
constexpr int kRows = 24; // of the world's batch: of 2, 3 and 4 replicas

inline Batch batch_at(int step, at::ScalarType type = at::kFloat) {
  const Batch batch = random_batches(kRows)(step);
  return {batch.x.to(type), batch.y.to(type)};
}

enum class Kind { kMomentum, kAdamW, kLamb, kNovoGrad };

inline std::unique_ptr<torch::optim::Optimizer> make_optimizer(
    Kind kind,
    const std::vector<torch::Tensor>& parameters) {
  if (kind == Kind::kMomentum) {
    return std::make_unique<torch::optim::SGD>(
        parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
  }
  if (kind == Kind::kLamb) {
    return std::make_unique<optim::Lamb>(
        parameters, optim::LambOptions(0.02).weight_decay(0.1).max_grad_norm(0.05));
  }
  if (kind == Kind::kNovoGrad) {
    return std::make_unique<optim::NovoGrad>(
        parameters, optim::NovoGradOptions(0.02).weight_decay(0.1));
  }
  return std::make_unique<torch::optim::AdamW>(
      parameters, torch::optim::AdamWOptions(0.02).weight_decay(0.1));
}

struct How {
  Kind kind = Kind::kAdamW;
  at::ScalarType type = at::kFloat;
  std::optional<double> clip = {};
  int passes = 1;
  std::string text() const {
    return tessera::str(
        std::vector<const char*>{"momentum", "AdamW", "LAMB", "NovoGrad"}.at(
            static_cast<std::size_t>(kind)),
        ", ",
        type,
        clip ? ", clipped" : "",
        passes > 1 ? ", two passes" : "");
  }
};

/// A model with its optimizer, and what a script does with them.
struct Training {
  explicit Training(const How& how = {})
      : how(how),
        model(made(dp_rank() == 0 ? 7 : 8, how.type), options_of(how)),
        optimizer(make_optimizer(how.kind, model.parameters())) {}
  static ModelOptions options_of(const How& how) {
    ModelOptions options;
    options.backward_passes_per_step = how.passes;
    options.bucket_cap_mb = 0.0005; // several buckets
    return options;
  }
  void backward(int step) {
    const Batch mine = part_of(batch_at(step, how.type), data_size(), data_rank());
    step_of(model)(mine.x, mine.y);
  }
  /// Returns the norm where it clips.
  double update(int step) {
    optimizer.zero_grad();
    for (int pass = 0; pass < how.passes; ++pass) {
      backward(step * how.passes + pass);
    }
    const double norm = how.clip ? optimizer.clip_grad_norm(*how.clip) : 0;
    optimizer.step();
    return norm;
  }
  How how;
  DistributedModel<Chain> model;
  DistributedOptimizer optimizer;
};

/// The same in one process, with torch alone.
struct PlainTraining {
  explicit PlainTraining(const How& how = {})
      : how(how),
        chain(made(7, how.type)),
        optimizer(make_optimizer(how.kind, chain->parameters())) {}
  double update(int step) {
    optimizer->zero_grad();
    for (int pass = 0; pass < how.passes; ++pass) {
      const Batch batch = batch_at(step * how.passes + pass, how.type);
      torch::mse_loss(chain(batch.x), batch.y).backward();
    }
    const double norm =
        how.clip ? torch::nn::utils::clip_grad_norm_(chain->parameters(), *how.clip) : 0;
    optimizer->step();
    return norm;
  }
  How how;
  Chain chain;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

inline void
expect_same_bits(const TensorMap& got, const TensorMap& wanted, const std::string& what) {
  ASSERT_EQ(got.size(), wanted.size()) << what;
  for (const auto& [name, tensor] : wanted) {
    EXPECT_TRUE(got.at(name).equal(tensor)) << what << ", " << name;
  }
}

/// Ranks that hold a parameter have one value of it.
inline void expect_equal_replicas(const DistributedModel<Chain>& model, const std::string& what) {
  for (const auto& [name, tensor] : model.local_parameters()) {
    for (const torch::Tensor& other : allgather(tensor.detach(), Group::kRDP)) {
      EXPECT_TRUE(other.equal(tensor.detach())) << what << ", " << name;
    }
  }
}

} // namespace tessera::testing
