// Pipeline ranks that hold several stages in turns.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

#include "tests/unit/simulator/bare.h"

namespace tessera::simulator {
namespace {

// A pipeline of one replica on nodes of one device; its ranks hold `turns` stages each.
cost::Strategy in_turns(int pp, int turns, int layers, int active) {
  auto strategy = small_strategy(pp, 1, 1, 1, layers);
  strategy.stages_per_rank = turns;
  strategy.boundaries = cost::even_cuts(layers, pp * turns);
  strategy.active_microbatches = active;
  return strategy;
}

cost::Cluster single_devices(int count) {
  auto cluster = small_cluster(count, 0);
  for (auto& node : cluster.nodes) {
    node.count = 1;
  }
  return cluster;
}

cost::DescribedModel without_transfers(int layers, int batch) {
  auto model = small_model(layers);
  model.global_batch_size = batch;
  for (auto& layer : model.layers) {
    layer.output_elements_per_sample = 0;
  }
  return model;
}

// What a layer takes.
constexpr double kForward = 1e-3;
constexpr double kBackward = 2e-3;

TEST(Turns, AMicrobatchComesToARankOnceForEachOfItsStages) {
  const auto model = without_transfers(4, 1);
  const auto result = simulate(model, single_devices(2), in_turns(2, 2, 4, 4), bare());
  std::vector<std::string> forwards;
  for (const auto& event : result.timeline.events) {
    if (event.category == "forward") {
      forwards.push_back(str(event.rank, " ", event.name, " ", event.end_us));
    }
  }
  EXPECT_THAT(
      forwards,
      testing::ElementsAre("0 stage 0 1000", "1 stage 1 2000", "0 stage 2 3000", "1 stage 3 4000"));
  EXPECT_NEAR(result.iteration_seconds, 4 * (kForward + kBackward), 1e-9);
}

TEST(Turns, OneOfThemFillsThePipeline) {
  // Four microbatches on four ranks of eight layers, as in figure 4 of Narayanan et al. 2021.
  const auto model = without_transfers(32, 4);
  const auto cluster = single_devices(4);
  const double of_rank = 8 * (kForward + kBackward);
  const auto seconds = [&](int turns) {
    return simulate(model, cluster, in_turns(4, turns, 32, 8), bare()).iteration_seconds;
  };
  EXPECT_NEAR(seconds(1), (4 + 3) * of_rank, 1e-9);
  // Backwards that are preferred to forwards cost a task or two in the middle.
  EXPECT_NEAR(seconds(2), (4 + 3.0 / 2) * of_rank, 0.13 * seconds(2));
  EXPECT_NEAR(seconds(4), (4 + 3.0 / 4) * of_rank, 0.1 * seconds(4));
  EXPECT_LT(seconds(4), seconds(2));
  EXPECT_LT(seconds(2), 0.9 * seconds(1));
  for (const int turns : {2, 4}) {
    const auto estimate = cost::price(model, cluster, in_turns(4, turns, 32, 8), bare().constants);
    EXPECT_NEAR(seconds(turns) / estimate.seconds, 1, 0.13) << turns;
  }
}

TEST(Turns, EveryOneSendsWhatOneStageWould) {
  auto model = small_model(16);
  model.global_batch_size = 4;
  const auto transfers = [&](int turns) {
    const auto result = simulate(model, single_devices(2), in_turns(2, turns, 16, 4), bare());
    return std::count_if(
        result.timeline.events.begin(), result.timeline.events.end(), [](const auto& event) {
          return event.category == "comm";
        });
  };
  EXPECT_EQ(transfers(1), 2 * 4); // an activation and its gradient, four microbatches
  EXPECT_EQ(transfers(2), 3 * 2 * 4);
  EXPECT_EQ(transfers(4), 7 * 2 * 4);
}

TEST(Turns, NoRankRunsTwoTasksAtOneTime) {
  auto model = small_model(16, 0.1);
  model.global_batch_size = 8;
  const auto result = simulate(model, single_devices(4), in_turns(4, 2, 16, 8), bare());
  std::map<int, std::vector<timeline::Event>> tasks;
  for (const auto& event : result.timeline.events) {
    if (event.lane == 0) {
      tasks[event.rank].push_back(event);
    }
  }
  ASSERT_EQ(tasks.size(), 4u);
  for (auto& [rank, events] : tasks) {
    EXPECT_EQ(events.size(), 2u * 8 * 2 + 1); // two stages, and the optimizer step
    std::sort(events.begin(), events.end(), [](const auto& a, const auto& b) {
      return a.start_us < b.start_us;
    });
    for (std::size_t i = 1; i < events.size(); ++i) {
      EXPECT_GE(events[i].start_us, events[i - 1].end_us - 1e-6);
    }
  }
}

TEST(Turns, ARankHoldsAllOfItsStages) {
  auto model = small_model(16);
  model.global_batch_size = 8;
  const auto cluster = single_devices(2);
  const auto strategy = in_turns(2, 2, 16, 4);
  const auto result = simulate(model, cluster, strategy, bare());
  const auto estimate = cost::price(model, cluster, strategy, bare().constants);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_LE(result.memory_high_water[rank], estimate.stages[rank].memory.total() + 1);
    EXPECT_DOUBLE_EQ(estimate.stages[rank].parameters, 8e6);
  }
}

TEST(Turns, LogitsAreThereWhileTheirStageIsAtWork) {
  auto model = small_model(16);
  model.global_batch_size = 8;
  model.layers.back().kind = "lm_head";
  model.layers.back().output_elements_per_sample = 1'000'000;
  const auto cluster = single_devices(2);
  const auto strategy = in_turns(2, 2, 16, 4);
  const auto result = simulate(model, cluster, strategy, bare());
  const auto estimate = cost::price(model, cluster, strategy, bare().constants);
  ASSERT_GT(estimate.stages[1].memory.logits, 0);
  EXPECT_LE(result.memory_high_water[1], estimate.stages[1].memory.total() + 1);
  EXPECT_GE(result.memory_high_water[1], estimate.stages[1].memory.logits);
}

TEST(Turns, TheFixedOrderHasNone) {
  const auto model = small_model(8);
  const auto cluster = single_devices(2);
  const auto message = [&](const cost::Strategy& strategy) {
    try {
      simulate(model, cluster, strategy, bare());
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(message(in_turns(2, 2, 8, 0)), testing::HasSubstr("active microbatches of 1"));
  auto uncut = in_turns(2, 2, 8, 4);
  uncut.boundaries = cost::even_cuts(8, 2);
  EXPECT_THAT(message(uncut), testing::HasSubstr("found 3 numbers; write 5"));
  auto alone = in_turns(2, 2, 8, 4);
  alone.pp = 1;
  alone.dp = 2;
  EXPECT_THAT(message(alone), testing::HasSubstr("stages_per_rank: found 2 with pp 1"));
}

} // namespace
} // namespace tessera::simulator
