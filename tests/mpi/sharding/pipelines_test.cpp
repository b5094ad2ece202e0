// Sharded parameters of pipeline stages: flows that depend on the data, orders, what is refused.
#include "tests/mpi/sharding/layouts.h"

namespace tessera::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

Layout pipeline() {
  return {2, 1, world_size() / 2};
}

template <typename MakeNet>
void expect_plain_numbers(const std::string& what, MakeNet make_net) {
  const Layout layout = pipeline();
  for (const int microbatches : {2, 4}) {
    const Trained plain =
        train_plain(make_net, random_batches(16), 4, slices_of(layout, microbatches));
    const Trained trained =
        train_distributed(layout_config(layout, microbatches), make_net, random_batches(16), 4);
    expect_same(
        trained.parameters, plain.parameters, str(what, ", microbatches ", microbatches), 2e-5);
  }
}

struct TwoMixedImpl : torch::nn::Module {
  TwoMixedImpl() {
    first = register_module("first", Mixed());
    second = register_module("second", Mixed());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return x + 0.1 * second(0.1 * first(x)); // small, since larger steps of it diverge
  }
  Mixed first{nullptr}, second{nullptr};
};
TESSERA_MODULE(TwoMixed);

TEST(Pipelines, OfLayersThatNobodySees) {
  expect_plain_numbers("mixed", [] { return TwoMixed(); });
}

TEST(Pipelines, OfEveryFlow) {
  for_every_flow(
      [](const std::string& what, auto make_net) { expect_plain_numbers(what, make_net); });
}

/// The first sample says whether a module is called, and how often another one is.
struct CountedImpl : torch::nn::Module {
  CountedImpl() {
    in = register_module("in", nn::Linear(kWidth, kWidth));
    rare = register_module("rare", Block());
    often = register_module("often", Block());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto h = in(x);
    h = x[0][0].item<float>() > 0 ? rare(h) : h;
    h = often(h);
    return x[0][1].item<float>() > 0 ? often(h) : h;
  }
  nn::Linear in{nullptr};
  Block rare{nullptr}, often{nullptr};
};
TESSERA_MODULE(Counted);

// After the first step every microbatch adds to one module twice as often as expected, so its
// bucket leaves for the last time early; and the bucket behind it waits for a module that the last
// microbatch does not call.
TEST(Pipelines, OfModulesCalledMoreOftenThanBefore) {
  const Layout layout = pipeline();
  constexpr int kMicrobatches = 2;
  const int slices = slices_of(layout, kMicrobatches);
  const MakeBatch batches = [&](int step) {
    Batch batch = random_batches(16)(step);
    for (int slice = 0; slice < slices; ++slice) {
      const bool first = slice % kMicrobatches == 0;
      const torch::Tensor rows = part_of(batch, slices, slice).x;
      rows.select(1, 0).fill_(step == 0 || first ? 1 : -1);
      rows.select(1, 1).fill_(step == 0 ? -1 : 1);
    }
    return batch;
  };
  Config config = layout_config(layout, kMicrobatches);
  config.sdp_reduce_bucket_size = 1;
  config.auto_partition = false;
  config.default_partition = 0;
  config.partition = {{"rare", 1}, {"often", 1}};
  for (const bool reproducible : {false, true}) {
    config.reproducible = reproducible;
    const auto make = [] { return Counted(); };
    const Trained plain = train_plain(make, batches, 4, slices);
    const Trained trained = train_distributed(config, make, batches, 4);
    expect_same(trained.parameters, plain.parameters, str("reproducible: ", reproducible), 2e-5);
  }
}

/// One replica after the other calls a module of the second stage, where its ranks alone read the
/// parameters; a replica without a backward sends zeros.
struct ByReplicaImpl : torch::nn::Module {
  ByReplicaImpl() {
    common = register_module("common", nn::Linear(kWidth, kWidth));
    rare = register_module("rare", Block());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto h = common(x);
    return dp_rank() == turn % dp_size() ? rare(h) : h;
  }
  int turn = 0;
  nn::Linear common{nullptr};
  Block rare{nullptr};
};
TESSERA_MODULE(ByReplica);

TensorMap trained_by_replica(int degree) {
  Config config = layout_config({2, 1, degree}, 2);
  config.auto_partition = false;
  config.default_partition = 0;
  config.partition = {{"rare", 1}};
  init(config);
  const Ended ended;
  return trained_in_turns<ByReplica>(6, [](int turn) { return dp_rank() == 1 && turn == 2; });
}

TEST(Pipelines, OfFlowsThatDifferBetweenReplicas) {
  const TensorMap plain = trained_by_replica(1);
  expect_same(trained_by_replica(2), plain, "degree 2", 2e-6);
}

TEST(Pipelines, AreTheSameBitsInEveryRun) {
  const Layout layout = pipeline();
  Config config = layout_config(layout, 4);
  config.reproducible = true;
  const Kind kind{.microbatches = 4, .clip = 0.3};
  const TensorMap first = train_together(config, kind).state;
  for (int run = 0; run < 2; ++run) {
    const TensorMap again = train_together(config, kind).state;
    for (const auto& [name, tensor] : first) {
      EXPECT_TRUE(tensor.equal(again.at(name))) << name;
    }
  }
  if (16 % slices_of(layout, 4) == 0) {
    expect_alone(config, layout, kind, "reproducible");
  }
}

TEST(Pipelines, OfRecordedSteps) {
  Config config = layout_config(pipeline(), 2);
  config.static_mode = true;
  config.static_mode_steps = 1;
  const auto make = [] { return Tied(); };
  const Trained plain = train_plain(make, random_batches(16), 6, slices_of(pipeline(), 2));
  const Trained trained = train_distributed(config, make, random_batches(16), 6);
  expect_same(trained.parameters, plain.parameters, "recorded", 5e-5);
}

TEST(Pipelines, OfOperations) {
  Config config = layout_config(pipeline(), 2);
  config.partition_mode = "operations";
  const auto make = [] { return Tied(); };
  const Trained plain = train_plain(make, random_batches(16), 4, slices_of(pipeline(), 2));
  const Trained trained = train_distributed(config, make, random_batches(16), 4);
  expect_same(trained.parameters, plain.parameters, "operations", 2e-5);
}

TEST(Pipelines, ZeroingInsideOfAStepIsAnError) {
  init(layout_config(pipeline(), 2));
  const Ended ended;
  torch::manual_seed(7);
  DistributedModel model{Tied()};
  auto optimizer = sgd(model.parameters());
  bool zeroes = false;
  auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
    if (zeroes) {
      optimizer.zero_grad();
    }
    model.backward(torch::mse_loss(model(x), y));
  });
  const Batch mine = mine_of(random_batches(16)(0));
  train_step(mine.x, mine.y);
  optimizer.step();
  zeroes = true;
  EXPECT_THAT(
      error_of<UserError>([&] { train_step(mine.x, mine.y); }),
      AllOf(HasSubstr("optimizer.zero_grad() was called in a step"), HasSubstr("before the step")));
  zeroes = false; // what failed leaves the model usable
  optimizer.zero_grad();
  train_step(mine.x, mine.y);
  optimizer.step();
}

} // namespace
} // namespace tessera::testing
