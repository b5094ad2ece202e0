// What the automatic partition goes by: measured times where they are asked for, and not the
// scopes of a manual one.
#include <gmock/gmock.h>

#include "tessera/model/model_core.h"
#include "tessera/train/model_access.h"

#include "tests/mpi/order/support.h"

namespace tessera::testing {
namespace {

/// A block that may take its time while it is traced.
struct TimedImpl : torch::nn::Module {
  explicit TimedImpl(double pause) : pause(pause) {
    block = register_module("block", Block());
  }
  torch::Tensor forward(const torch::Tensor& x) {
    if (pause > 0 && is_tracing()) {
      sleep_ms(pause);
    }
    return block(x);
  }
  Block block{nullptr};
  double pause;
};
TESSERA_MODULE(Timed);

struct FourImpl : torch::nn::Module {
  explicit FourImpl(double last_pause, bool scopes = false) {
    std::optional<partition> scope;
    for (const char* name : {"a", "b", "c", "d"}) {
      if (scopes) {
        scope.reset();
        scope.emplace(name[0] == 'a' ? 1 : 0);
      }
      parts.push_back(register_module(name, Timed(name[0] == 'd' ? last_pause : 0)));
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    auto h = x;
    for (auto& part : parts) {
      h = part(h);
    }
    return h;
  }
  std::vector<Timed> parts;
};
TESSERA_MODULE(Four);

std::map<std::string, int> placed_by(const Config& config, double last_pause, bool scopes = false) {
  init(config);
  const Ended ended;
  torch::manual_seed(5);
  DistributedModel model{Four(last_pause, scopes)};
  auto forward = tessera::step([&](torch::Tensor x) { return model(x); });
  const torch::NoGradGuard no_grad;
  forward(torch::ones({4, kWidth}));
  return train::ModelAccess::core(model)->plan().partition;
}

Config automatic() {
  Config config = config_of(2, 2);
  config.memory_weight = 0.0; // times alone, or counts of modules
  return config;
}

/// The pp rank of each part with all that is in it.
std::vector<int> ranks_of(const std::map<std::string, int>& partition) {
  std::vector<int> ranks;
  for (const char* name : {"a", "b", "c", "d"}) {
    ranks.push_back(partition.at(str(name, ".block.a")));
  }
  return ranks;
}

TEST(Placement, MeasuredTimesGiveTheSlowModuleARankOfItsOwn) {
  Config config = automatic();
  config.trace_execution_times = true;
  const auto ranks = ranks_of(placed_by(config, 200));
  EXPECT_EQ(ranks[0], ranks[1]);
  EXPECT_EQ(ranks[1], ranks[2]);
  EXPECT_NE(ranks[2], ranks[3]);
}

TEST(Placement, WithoutThemNoClockCounts) {
  const auto quick = placed_by(automatic(), 0);
  const auto ranks = ranks_of(quick);
  EXPECT_EQ(ranks[0], ranks[1]);
  EXPECT_EQ(ranks[2], ranks[3]);
  EXPECT_NE(ranks[1], ranks[2]);
  EXPECT_EQ(placed_by(automatic(), 200), quick);
}

TEST(Placement, ScopesOfPartitionsDoNotCountUnderAutoPartition) {
  const auto wanted = placed_by(automatic(), 0);
  EXPECT_EQ(placed_by(automatic(), 0, /*scopes=*/true), wanted);
  Config manual = automatic();
  manual.auto_partition = false;
  manual.default_partition = 0;
  const auto scoped = placed_by(manual, 0, /*scopes=*/true);
  EXPECT_THAT(ranks_of(scoped), ::testing::ElementsAre(1, 0, 0, 0)); // where they do
  EXPECT_NE(scoped, wanted);
}

} // namespace
} // namespace tessera::testing
