// The key fp32_grad_accumulation: sums that 16 bits lose, under every layout.
#include <limits>
#include <vector>

#include "tessera/half/operators.h"
#include "tessera/nn/module/activation_checkpointing.h"
#include "tessera/optim/adamw_8bit.h"
#include "tessera/optim/optimizer_access.h"

#include "tests/mpi/optim/support.h"

namespace tessera::testing {
namespace {

constexpr int kSlices = 32; // of the world's batches of one update, of one row each
constexpr double kScale = 1 << 15; // of losses in f16, whose small gradients are no subnormals then
constexpr double kLargeRate = 64; // so that f32 masters show what they got
constexpr double kExact = 1e-6; // of f32 sums in another order

/// A chain whose products, biases and table all have 16-bit gradients; nothing reaches `idle`.
struct SummedImpl : torch::nn::Module {
  explicit SummedImpl(bool sparse = false) {
    table = register_module(
        "table", nn::Embedding(torch::nn::EmbeddingOptions(5, kWidth).sparse(sparse)));
    idle = register_module("idle", nn::Linear(kWidth, kWidth));
    chain = register_module("chain", Chain());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return chain(x + table(torch::ones({x.size(0)}, torch::kLong)));
  }
  nn::Embedding table{nullptr};
  nn::Linear idle{nullptr};
  Chain chain{nullptr};
};
TESSERA_MODULE(Summed);

Summed summed(bool recomputes = false, bool sparse = false) {
  torch::manual_seed(5);
  Summed made(sparse);
  if (recomputes) {
    set_activation_checkpointing(made->chain->a);
    set_activation_checkpointing(made->chain->c);
  }
  return made;
}

struct SumCase {
  Layout layout;
  bool fp16 = false;
  int passes = 1;
  bool reproducible = false;
  bool shares_state = false;
  int sharded = 1;
  bool recomputes = false;
  bool sparse = false;
  bool replayed = false;
  std::string kind = "1d";
  bool f32_sums = true;

  double scale() const {
    return fp16 ? kScale : 1;
  }
  at::ScalarType type() const {
    return fp16 ? at::kHalf : at::kBFloat16;
  }
  /// How much smaller the later gradients are: less than a quarter of the first one's last bit.
  double small() const {
    return fp16 ? 1.0 / (1 << 13) : 1.0 / (1 << 10);
  }
  /// The sum of all gradients, in units of the first.
  double sum() const {
    return 1 + (kSlices - 1) * small();
  }
  std::string text() const {
    return str(
        layout.text(),
        fp16 ? ", f16" : ", bf16",
        ", passes ",
        passes,
        reproducible ? ", reproducible" : "",
        shares_state ? ", shared state" : "",
        ", sharded ",
        sharded,
        recomputes ? ", recomputed" : "",
        replayed ? ", replayed" : "",
        sparse ? ", sparse, " : ", ",
        kind);
  }
  Config config() const {
    const int pp = layout.pp;
    const int microbatches = kSlices / passes / (world_size() / pp);
    Config config =
        placed(pp, microbatches, {{"chain.b", 1 % pp}, {"chain.c", pp / 2}, {"chain.d", pp - 1}});
    config.tensor_parallel_degree = layout.tp;
    config.tensor_parallel_kind = kind;
    (fp16 ? config.fp16 : config.bf16) = true;
    config.fp32_grad_accumulation = f32_sums;
    config.reproducible = reproducible;
    config.static_mode = replayed;
    config.static_mode_steps = replayed ? 1 : Config{}.static_mode_steps;
    config.shard_optimizer_state = shares_state;
    config.sharded_data_parallel_degree = sharded;
    if (sharded > 1) {
      config.sdp_param_persistence_threshold = 0;
      config.sdp_gradient_clipping = 1e9;
    }
    return config;
  }
};

/// Rows of all slices, alike; y weighs each row's loss: the first one is large.
Batch slices_of_sum(double small) {
  torch::manual_seed(9);
  const auto x = torch::randn({1, kWidth}).repeat({kSlices, 1});
  auto weights = torch::full({kSlices, 1}, small);
  weights[0].fill_(1);
  return {x, weights};
}

/// What one process gets: the sum in f32 of the slices' 16-bit gradients, which differ by a power
/// of two. Masters get it.
TensorMap wanted_of(const SumCase& c) {
  half::support_processor();
  Summed plain = summed();
  plain->to(c.type());
  const Batch batch = slices_of_sum(c.small());
  TensorMap sum;
  for (int slice = 0; slice < kSlices; ++slice) {
    const Batch one = part_of(batch, kSlices, slice);
    const auto y = plain(one.x.to(c.type())).to(at::kFloat);
    ((y * one.y).mean() * (c.scale() * c.passes / kSlices)).backward();
    for (const auto& item : plain->named_parameters()) {
      torch::Tensor& gradient = item.value().mutable_grad();
      if (gradient.defined()) {
        const auto part = gradient.to(at::kFloat) / c.scale();
        sum[item.key()] = slice == 0 ? part : sum[item.key()] + part;
        gradient = torch::Tensor();
      }
    }
  }
  return sum;
}

double total_norm(const TensorMap& tensors) {
  double square = 0;
  for (const auto& [name, tensor] : tensors) {
    square += tensor.to(at::kDouble).pow(2).sum().item<double>();
  }
  return std::sqrt(square);
}

struct SummingRun {
  explicit SummingRun(const SumCase& c)
      : model(summed(c.recomputes, c.sparse), options_of(c)),
        optimizer(
            torch::optim::SGD(model.parameters(), torch::optim::SGDOptions(kLargeRate)),
            c.fp16 ? LossScaleOptions{.static_loss_scale = kScale} : LossScaleOptions{}),
        passes(c.passes),
        mine(part_of(slices_of_sum(c.small()), data_size(), data_rank())) {}
  static ModelOptions options_of(const SumCase& c) {
    ModelOptions options;
    options.backward_passes_per_step = c.passes;
    return options;
  }
  void backward() {
    auto step = tessera::step(
        [this](torch::Tensor x, torch::Tensor y) { model.backward((model(x) * y).mean()); });
    for (int pass = 0; pass < passes; ++pass) {
      const Batch part = part_of(mine, passes, pass);
      step(part.x, part.y);
    }
  }
  TensorMap masters() const {
    TensorMap all;
    for (const auto& [name, tensor] : optim::OptimizerAccess::updated_tensors(optimizer)) {
      all[name] = tensor.detach().to(at::kDouble);
    }
    return all;
  }
  DistributedModel<Summed> model;
  DistributedOptimizer optimizer;
  int passes;
  Batch mine;
};

/// Gradients that this rank has whole, divided by the loss scale. `factor`: of a clipping.
void expect_gradients(
    SummingRun& run,
    const SumCase& c,
    const TensorMap& wanted,
    double factor = 1) {
  // Clipping adds 1e-6 to a norm.
  const double exact = factor == 1 ? kExact : 2e-6 / total_norm(wanted);
  for (const auto& [name, tensor] : run.model.local_parameters()) {
    const auto& gradient = tensor.grad();
    EXPECT_EQ(tensor.scalar_type(), c.type());
    if (!wanted.contains(name)) {
      EXPECT_FALSE(gradient.defined()) << name << ", " << c.text();
    } else if (gradient.defined() || !c.shares_state) {
      ASSERT_TRUE(gradient.defined()) << name << ", " << c.text();
      EXPECT_EQ(gradient.scalar_type(), at::kFloat) << name << ", " << c.text();
      const auto dense = gradient.is_sparse() ? gradient.to_dense() : gradient;
      const auto value = dense.to(at::kDouble) / c.scale();
      EXPECT_LE(relative_error(value, wanted.at(name) * factor), exact) << name << ", " << c.text();
    }
  }
}

void expect_trains(const SumCase& c) {
  init(c.config());
  const Ended ended;
  const TensorMap wanted = wanted_of(c);
  const double norm = total_norm(wanted);
  // With tensor parallelism the products of both ranks' rows are rounded to 16 bits together.
  const double tolerance = c.layout.tp > 1 ? 0.2 * (c.sum() - 1) : kExact;
  const bool whole = c.layout.tp == 1 && c.sharded == 1;
  SummingRun run(c);
  constexpr double kAll = std::numeric_limits<double>::infinity();
  for (const bool to_none : {true, false, true}) { // also in buckets that stay
    run.optimizer.zero_grad(to_none);
    run.backward();
    if (whole) {
      expect_gradients(run, c, wanted);
    }
    EXPECT_NEAR(run.optimizer.clip_grad_norm(kAll), norm, tolerance * norm) << c.text();
  }
  double factor = 1;
  if (c.sharded == 1) {
    factor = 0.5;
    run.optimizer.clip_grad_norm(factor * norm);
    EXPECT_NEAR(run.optimizer.clip_grad_norm(kAll), factor * norm, tolerance * norm + 1e-6)
        << c.text();
    if (whole) {
      expect_gradients(run, c, wanted, c.fp16 ? 1 : factor); // in f16 masters alone are clipped
    }
  }
  TensorMap masters = run.masters();
  run.optimizer.step();
  EXPECT_FALSE(run.optimizer.overflow());
  for (const auto& [name, tensor] : run.masters()) {
    const torch::Tensor moved = masters.at(name) - tensor;
    if (!wanted.contains(name)) {
      EXPECT_EQ(moved.abs().sum().item<double>(), 0) << name << ", " << c.text();
    } else if (whole && !c.shares_state) { // masters of others are what they were
      EXPECT_LE(relative_error(moved / kLargeRate, wanted.at(name) * factor), 1e-4)
          << name << ", " << c.text();
    }
  }
}

/// Also four replicas of the whole model.
std::vector<Layout> all_layouts() {
  std::vector<Layout> all = layouts();
  if (world_size() == 4) {
    all.push_back({1, 1});
  }
  return all;
}

TEST(F32Sums, AreThoseOfOneProcess) {
  for (const Layout& layout : all_layouts()) {
    for (const bool fp16 : {false, true}) {
      expect_trains({.layout = layout, .fp16 = fp16});
    }
  }
}

TEST(F32Sums, OverBackwardPasses) {
  for (const Layout& layout : all_layouts()) {
    expect_trains({.layout = layout, .passes = 4});
    expect_trains({.layout = layout, .fp16 = true, .passes = 4});
  }
}

TEST(F32Sums, InOneOrder) {
  for (const Layout& layout : all_layouts()) {
    expect_trains({.layout = layout, .reproducible = true});
  }
}

TEST(F32Sums, OfRecomputedLayers) {
  for (const Layout& layout : all_layouts()) {
    if (layout.tp == 1) {
      expect_trains({.layout = layout, .recomputes = true});
    }
  }
}

TEST(F32Sums, WithSharedOptimizerState) {
  for (const Layout& layout : all_layouts()) {
    if (world_size() > layout.pp) {
      expect_trains({.layout = layout, .shares_state = true});
      expect_trains({.layout = layout, .fp16 = true, .shares_state = true});
    }
  }
}

TEST(F32Sums, OfDividedParameters) {
  for (const Layout& layout : all_layouts()) {
    if (layout.tp == 1 && world_size() > layout.pp) {
      for (const bool fp16 : {false, true}) {
        expect_trains({.layout = layout, .fp16 = fp16, .sharded = 2});
        expect_trains({.layout = layout, .fp16 = fp16, .passes = 4, .sharded = 2});
      }
    }
  }
}

TEST(F32Sums, InStepsThatAreReplayed) {
  for (const Layout& layout : all_layouts()) {
    if (layout.tp == 1) {
      expect_trains({.layout = layout, .replayed = true});
    }
  }
}

TEST(F32Sums, OfSparseGradients) {
  for (const Layout& layout : all_layouts()) {
    if (layout.tp == 1) {
      expect_trains({.layout = layout, .sparse = true});
      expect_trains({.layout = layout, .passes = 4, .sparse = true});
    }
  }
}

TEST(F32Sums, OnAMesh) {
  if (world_size() == 4) {
    expect_trains({.layout = {1, 4}, .kind = "2d"});
  }
}

// Without masters too: an optimizer that rounds parameters itself gets the f32 gradient. What one
// microbatch gives is the same with the key and without it.
TEST(F32Sums, ReachAnOptimizerWithoutMasters) {
  const auto trained = [](bool f32_sums) {
    const SumCase c{.layout = {1, 1}, .f32_sums = f32_sums};
    Config config = c.config();
    config.microbatches = 1;
    init(config);
    const Ended ended;
    DistributedModel model(summed());
    DistributedOptimizer optimizer(optim::AdamW8bit(
        model.parameters(), optim::AdamW8bitOptions(0.01).stochastic_rounding(true)));
    auto step = tessera::step([&model](torch::Tensor x) { model.backward(model(x).mean()); });
    for (int i = 0; i < 3; ++i) {
      optimizer.zero_grad();
      step(part_of(slices_of_sum(1), kSlices, 0).x);
      optimizer.step();
    }
    return model.state_dict();
  };
  const TensorMap with = trained(true);
  for (const auto& [name, tensor] : trained(false)) {
    EXPECT_TRUE(with.at(name).equal(tensor)) << name;
  }
}

// The reason for the key: without it the small gradients are gone.
TEST(F32Sums, AreNotMadeWithoutTheKey) {
  for (const Layout& layout : all_layouts()) {
    if (world_size() > layout.pp) {
      continue; // replicas that have no large gradient lose less
    }
    for (const bool fp16 : {false, true}) {
      const SumCase c{.layout = layout, .fp16 = fp16, .f32_sums = false};
      init(c.config());
      const Ended ended;
      const double norm = total_norm(wanted_of(c));
      SummingRun run(c);
      run.backward();
      for (const auto& [name, tensor] : run.model.local_parameters()) {
        EXPECT_TRUE(!tensor.grad().defined() || tensor.grad().scalar_type() == c.type()) << name;
      }
      const double got = run.optimizer.clip_grad_norm(1e9);
      EXPECT_LT(got, norm * (1 - 0.8 * (c.sum() - 1))) << c.text();
    }
  }
}

// A script's own 16-bit gradient becomes f32 before a step adds to it; a backward outside of steps
// adds in f32 too.
TEST(F32Sums, OutsideOfSteps) {
  const SumCase c{.layout = {1, 1}};
  init(c.config());
  const Ended ended;
  SummingRun run(c);
  const TensorMap wanted = wanted_of(c);
  torch::Tensor first;
  for (const auto& [name, tensor] : run.model.local_parameters()) {
    if (name == "chain.d.bias") {
      first = tensor;
    }
  }
  ASSERT_TRUE(first.defined());
  const Batch batch = slices_of_sum(c.small());
  for (int slice = 0; slice < kSlices; ++slice) {
    const Batch one = part_of(batch, kSlices, slice);
    ((run.model(one.x) * one.y).mean() / kSlices).backward();
  }
  expect_gradients(run, c, wanted);
  run.optimizer.zero_grad();
  first.mutable_grad() = torch::full_like(first.detach(), 16);
  run.backward();
  EXPECT_EQ(first.grad().scalar_type(), at::kFloat);
  run.optimizer.clip_grad_norm(1e9); // averages
  EXPECT_LE(relative_error(first.grad() - 16, wanted.at("chain.d.bias")), 1e-3);
}

} // namespace
} // namespace tessera::testing
