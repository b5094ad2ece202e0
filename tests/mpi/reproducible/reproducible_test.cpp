// Ten runs, one state.
#include "tests/mpi/reproducible/support.h"

namespace tessera::testing {
namespace {

constexpr int kMicrobatches = 6;
constexpr int kRows = 24;

template <typename MakeNet>
std::uint64_t train_once(const Config& config, MakeNet make_net, int steps) {
  init(config);
  const Ended ended;
  torch::manual_seed(7);
  DistributedModel model(make_net());
  DistributedOptimizer optimizer = sgd(model.parameters());
  auto train_step = tessera::step([&](torch::Tensor x, torch::Tensor y) {
    auto loss = torch::mse_loss(model(x), y);
    model.backward(loss);
    return loss;
  });
  for (int step = 0; step < steps; ++step) {
    torch::manual_seed(1000 + step);
    const Batch whole{
        torch::randn({kRows * dp_size(), kWidth}), torch::randn({kRows * dp_size(), kWidth})};
    const Batch mine = mine_of(whole);
    optimizer.zero_grad();
    train_step(mine.x, mine.y);
    optimizer.step();
  }
  return state_of(model);
}

template <typename MakeNet>
std::set<std::uint64_t>
states(const Config& config, MakeNet make_net, int runs = 10, int steps = 2) {
  const Load load;
  std::set<std::uint64_t> found;
  for (int run = 0; run < runs; ++run) {
    found.insert(train_once(config, make_net, steps));
  }
  return found;
}

Config reproducible(Config config) {
  config.reproducible = true;
  return config;
}

/// Blocks of a chain by turns on the ranks, so that each rank is visited again.
Config chain_over(int pp) {
  std::map<std::string, int> partition;
  for (int i = 0; i < 4; ++i) {
    partition["block" + std::to_string(i)] = (i + 1) % pp;
  }
  return placed(pp, kMicrobatches, partition);
}

Config mixed() {
  return placed(2, kMicrobatches, {{"shared", 1}, {"far", 1}, {"dropped", 1}});
}

Config repeated(Config config, bool direct) {
  config.static_mode = true;
  config.fast_mode = direct;
  config.static_mode_steps = 2;
  return config;
}

SlowChain chain() {
  return SlowChain();
}

SlowMix mix() {
  return SlowMix();
}

TEST(Reproducible, WithoutTheKeySumsDependOnTiming) {
  if (world_size() != 2) {
    GTEST_SKIP();
  }
  const Load load;
  std::set<std::uint64_t> found;
  for (int run = 0; run < 60 && found.size() < 2; ++run) {
    found.insert(train_once(mixed(), mix, 2));
  }
  EXPECT_GT(found.size(), 1U)
      << "the disturbance disturbs nothing, so the other tests show nothing";
}

TEST(Reproducible, TwoStages) {
  if (world_size() != 2) {
    GTEST_SKIP();
  }
  EXPECT_EQ(states(reproducible(chain_over(2)), chain).size(), 1U);
}

TEST(Reproducible, TwoStagesStaticAndFast) {
  if (world_size() != 2) {
    GTEST_SKIP();
  }
  for (const bool direct : {false, true}) {
    EXPECT_EQ(states(repeated(reproducible(mixed()), direct), mix, direct ? 10 : 3, 4).size(), 1U);
  }
}

TEST(Reproducible, CallsTiesAndRunningStatistics) {
  if (world_size() != 2) {
    GTEST_SKIP();
  }
  EXPECT_EQ(states(reproducible(mixed()), mix).size(), 1U);
}

TEST(Reproducible, SchedulesThatGoTheirOwnWay) {
  if (world_size() != 2) {
    GTEST_SKIP();
  }
  Config config = reproducible(mixed());
  config.pipeline = "simple";
  EXPECT_EQ(states(config, mix, 3, 2).size(), 1U);
  config.pipeline = "custom";
  config.custom_schedule = "2F 0F 1F 1B 3F 5F 0B 4F 2B 5B 3B 4B";
  config.active_microbatches = 6;
  EXPECT_EQ(states(config, mix, 3, 2).size(), 1U);
}

// A step whose microbatches take different ways, one with calls that another
// has not.
TEST(Reproducible, DataDependentFlow) {
  if (world_size() != 2) {
    GTEST_SKIP();
  }
  const Config config =
      reproducible(placed(2, kMicrobatches, {{"left", 1}, {"right", 0}, {"gate", 1}}));
  EXPECT_EQ(
      states(
          config, [] { return Control(); }, 3)
          .size(),
      1U);
}

TEST(Reproducible, StagesTimesReplicas) {
  if (world_size() != 4) {
    GTEST_SKIP();
  }
  EXPECT_EQ(states(reproducible(chain_over(2)), chain).size(), 1U);
  Config ordered = reproducible(mixed());
  ordered.deterministic_server = true;
  EXPECT_EQ(states(ordered, mix, 3, 2).size(), 1U);
}

TEST(Reproducible, StagesTimesTensorParallelism) {
  if (world_size() != 4) {
    GTEST_SKIP();
  }
  Config config = reproducible(chain_over(2));
  config.tensor_parallel_degree = 2;
  const auto marked = [] {
    SlowChain net;
    for (auto& block : net->blocks) {
      set_tensor_parallelism(block->a);
    }
    return net;
  };
  EXPECT_EQ(states(config, marked).size(), 1U);
}

TEST(Reproducible, FourStagesInterleaved) {
  if (world_size() != 4) {
    GTEST_SKIP();
  }
  EXPECT_EQ(states(reproducible(chain_over(4)), chain).size(), 1U);
  EXPECT_EQ(states(repeated(reproducible(chain_over(4)), true), chain, 3, 4).size(), 1U);
}

} // namespace
} // namespace tessera::testing
