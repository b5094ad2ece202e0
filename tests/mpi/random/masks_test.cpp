// Masks of dropout, to the bit: pipelines, replicas, microbatches, static and fast mode, and
// recomputation drop what one process drops.
#include "tests/mpi/random/support.h"

namespace tessera::testing {
namespace {

constexpr int kRows = 16; // of the batch of all replicas
constexpr double kProbability = 0.5;

/// Drops twice and says what: [B, width] -> [B, width], products of powers of two.
struct DropperImpl : torch::nn::Module {
  DropperImpl() {
    weight = register_parameter("weight", torch::ones({kWidth}));
    drop = register_module("drop", nn::Dropout(kProbability));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return torch::dropout(x * weight, kProbability, is_training()) + 16 * drop(x);
  }
  torch::Tensor weight;
  nn::Dropout drop{nullptr};
};
TESSERA_MODULE(Dropper);

struct DroppersImpl : torch::nn::Module {
  DroppersImpl() {
    a = register_module("a", Dropper());
    b = register_module("b", Dropper());
    c = register_module("c", Dropper());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    // b is called twice, and the parent drops between calls that go to other ranks.
    const auto first = a(x);
    const auto second = b(first);
    const auto own = torch::dropout(x, kProbability, is_training());
    return torch::cat({first, second, own, c(second), b(x)}, 1);
  }
  Dropper a{nullptr}, b{nullptr}, c{nullptr};
};
TESSERA_MODULE(Droppers);

/// What one process keeps in step `step`.
torch::Tensor plain_masks(int step) {
  Droppers net;
  const random::StreamScope scope(plain_stream(step));
  const auto out = net(torch::ones({kRows, kWidth}));
  return torch::dropout(out, kProbability, /*train=*/true).detach();
}

struct Case {
  int pp = 1;
  int microbatches = 1;
  std::string mode = {}; // "static" or "fast"
  std::string recomputed = {}; // "", "each" (whole) or "selective"

  std::string text() const {
    return str(
        "pp ",
        pp,
        " of ",
        world_size(),
        " ranks, microbatches ",
        microbatches,
        " ",
        mode,
        " ",
        recomputed);
  }
};

void expect_masks(const Case& given) {
  SCOPED_TRACE(given.text());
  Config config = independent(placed(
      given.pp,
      given.microbatches,
      {{"a", given.pp - 1}, {"b", given.pp / 2}, {"c", given.pp > 2 ? 1 : 0}}));
  config.static_mode = !given.mode.empty();
  config.fast_mode = given.mode == "fast";
  config.static_mode_steps = given.mode.empty() ? 5 : 1;
  init(config);
  const Ended ended;
  Droppers net;
  if (!given.recomputed.empty()) {
    for (const Dropper& part : {net->a, net->b, net->c}) {
      set_activation_checkpointing(*part.ptr(), {.strategy = given.recomputed});
    }
  }
  DistributedModel model{net};
  auto run = tessera::step([&](torch::Tensor x) {
    const auto out = torch::dropout(model(x), kProbability, /*train=*/true);
    model.backward(out.sum());
    return out;
  });
  const int steps = given.mode.empty() ? 2 : 4; // some that are repeated
  for (int step = 0; step < steps; ++step) {
    const auto wanted = plain_masks(step);
    const auto rows = kRows / dp_size();
    const auto out = run(torch::ones({rows, kWidth})).concat();
    EXPECT_TRUE(out.equal(wanted.narrow(0, dp_rank() * rows, rows))) << "step " << step;
    EXPECT_FALSE(wanted.equal(plain_masks(step + 1)));
  }
}

std::vector<int> pipelines() {
  return world_size() == 1   ? std::vector<int>{1}
         : world_size() == 2 ? std::vector<int>{1, 2}
                             : std::vector<int>{2, 4};
}

TEST(Masks, DoNotDependOnPipelineReplicasAndMicrobatches) {
  for (const int pp : pipelines()) {
    for (const int microbatches : {1, 2, 4}) {
      expect_masks({pp, microbatches, "", ""});
    }
  }
}

TEST(Masks, DoNotDependOnStaticAndFastMode) {
  for (const int pp : pipelines()) {
    if (pp > 1) {
      expect_masks({pp, 2, "static", ""});
      expect_masks({pp, 4, "fast", ""});
      expect_masks({pp, 2, "fast", "each"});
    }
  }
}

TEST(Masks, DoNotDependOnRecomputation) {
  for (const int pp : pipelines()) {
    expect_masks({pp, 2, "", "each"});
    expect_masks({pp, 2, "", "selective"});
  }
}

// The gradient of the weight is what came out of it only if the second run drops what the first
// one dropped.
TEST(Masks, ASecondRunDropsTheSame) {
  for (const bool selective : {false, true}) {
    init(independent(config_of(1, 2)));
    const Ended ended;
    Droppers net;
    set_activation_checkpointing(*net->a.ptr(), {.strategy = selective ? "selective" : "each"});
    DistributedModel model{net};
    torch::Tensor sums = torch::zeros({kWidth});
    auto run = tessera::step([&](torch::Tensor x) {
      const auto out = model(x).narrow(1, 0, kWidth);
      model.backward(out.sum());
      return out;
    });
    const auto out = run(torch::ones({kRows, kWidth})).concat();
    const auto kept =
        torch::fmod(out, 16).sum(0) / 2; // the part of torch::dropout; two microbatches
    const auto wanted = torch::stack(allgather(kept, Group::kDP)).mean(0);
    EXPECT_TRUE(net->a->weight.grad().allclose(wanted)) << selective;
  }
}

TEST(Masks, OtherSeedsDropOthers) {
  const auto of_seed = [](std::int64_t seed) {
    Config config = independent(config_of(1, 1));
    config.seed = seed;
    init(config);
    const Ended ended;
    DistributedModel model{Droppers()};
    return tessera::step([&](torch::Tensor x) { return model(x); })(torch::ones({4, kWidth}))
        .concat();
  };
  EXPECT_TRUE(of_seed(1).equal(of_seed(1)));
  EXPECT_FALSE(of_seed(1).equal(of_seed(2)));
}

} // namespace
} // namespace tessera::testing
