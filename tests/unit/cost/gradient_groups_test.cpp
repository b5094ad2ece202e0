// Which ranks reduce gradients with which, and how many messages that takes, by hand.
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/cost/links.h"
#include "tessera/cost/staged_cost.h"
#include "tessera/cost/strategy_cost.h"

#include "tests/unit/cost/small_cases.h"

namespace tessera::cost {
namespace {

// One node of eight devices, each with a link of 1 GB/s to every other.
Cluster one_node() {
  Cluster cluster = small_cluster(1, 0);
  cluster.nodes[0].count = 8;
  cluster.nodes[0].intra_bytes_per_s = 1e9;
  return cluster;
}

constexpr double kMillion = 4e6 / 1e9; // seconds of a million gradients of four bytes

struct Counts {
  std::vector<double> parameters;
  std::vector<double> whole = {0, 0};
  std::vector<double> tied = {0, 0};
};

double staged_seconds(const std::vector<OwnStage>& stages, const Counts& counts) {
  StagedStrategy strategy;
  strategy.stages = stages;
  return gradient_sync_seconds(
             strategy, one_node(), counts.parameters, counts.whole, counts.tied, bare_constants()) /
         kMillion;
}

double uniform_seconds(const Strategy& strategy, const Counts& counts) {
  return gradient_sync_seconds(
             strategy, one_node(), counts.parameters, counts.whole, counts.tied, bare_constants()) /
         kMillion;
}

TEST(GradientGroups, EachTensorParallelRankReducesWithThoseOfOtherReplicas) {
  // Two replicas of two ranks: rings of two, that send everything once each way.
  const OwnStage stage = {.way = {2}, .devices = {0, 1, 2, 3}, .samples = {1, 1}};
  EXPECT_NEAR(staged_seconds({stage}, {.parameters = {3e6}}), 3, 1e-9);
  // One replica has nothing to reduce with.
  const OwnStage alone = {.way = {2}, .devices = {0, 1}, .samples = {1}};
  EXPECT_NEAR(staged_seconds({alone}, {.parameters = {3e6}}), 0, 1e-9);
  EXPECT_NEAR(uniform_seconds(small_strategy(2, 2, 2, 1, 2), {.parameters = {1e6, 3e6}}), 3, 1e-9);
}

TEST(GradientGroups, WhatEveryRankHoldsWholeIsReducedOverAllOfThem) {
  // A million over a ring of four, which sends 2 x 3 / 4 of it, and two over rings of two.
  const OwnStage stage = {.way = {2}, .devices = {0, 1, 2, 3}, .samples = {1, 1}};
  const Counts counts = {.parameters = {3e6}, .whole = {1e6}, .tied = {0}};
  EXPECT_NEAR(staged_seconds({stage}, counts), 1.5 + 2, 1e-9);
  EXPECT_NEAR(uniform_seconds(small_strategy(1, 2, 2, 1, 2), counts), 1.5 + 2, 1e-9);
  // Without tensor parallelism there is no such difference.
  const OwnStage single = {.devices = {0, 1}, .samples = {1, 1}};
  EXPECT_NEAR(staged_seconds({single}, counts), 3, 1e-9);
  EXPECT_NEAR(uniform_seconds(small_strategy(1, 2, 1, 1, 2), counts), 3, 1e-9);
}

TEST(GradientGroups, SharedParametersGoOverTheStagesThatHoldThem) {
  const Counts counts = {.parameters = {0, 0}, .tied = {2e6, 1e6}};
  // Pairs of one rank of each stage, and the larger count.
  const std::vector<OwnStage> alike = {
      {.devices = {0, 1}, .samples = {1, 1}}, {.devices = {2, 3}, .samples = {1, 1}}};
  EXPECT_NEAR(staged_seconds(alike, counts), 2, 1e-9);
  EXPECT_NEAR(uniform_seconds(small_strategy(2, 2, 1, 1, 2), counts), 2, 1e-9);
  EXPECT_NEAR(uniform_seconds(small_strategy(2, 1, 2, 1, 2), counts), 2, 1e-9);
  // Half a parameter takes half its time: what two ranks divide need not be even.
  EXPECT_NEAR(
      uniform_seconds(small_strategy(2, 2, 1, 1, 2), {.parameters = {0, 0}, .tied = {0.5, 0.5}}),
      0.5e-6,
      1e-9);
  EXPECT_NEAR(staged_seconds(alike, {.parameters = {0, 0}, .tied = {0.5, 0.5}}), 0.5e-6, 1e-9);
  // Stages of two and three devices have no pairs: one ring of five, 2 x 4 / 5 of it.
  std::vector<OwnStage> unlike = alike;
  unlike[1] = {.devices = {2, 3, 4}, .samples = {1, 1, 1}};
  EXPECT_NEAR(staged_seconds(unlike, counts), 2 * 1.6, 1e-9);
  // Nor have two replicas and two ranks of one: a ring of four.
  unlike[1] = {.way = {2}, .devices = {2, 3}, .samples = {1}};
  EXPECT_NEAR(staged_seconds(unlike, counts), 2 * 1.5, 1e-9);
  // Held by one stage they are its own.
  EXPECT_NEAR(staged_seconds(alike, {.parameters = {0, 0}, .tied = {2e6, 0}}), 0, 1e-9);
  EXPECT_NEAR(
      uniform_seconds(small_strategy(2, 2, 1, 1, 2), {.parameters = {0, 0}, .tied = {2e6, 0}}),
      0,
      1e-9);
}

TEST(GradientMessages, TakeATreesLevelsOrARingsSteps) {
  // Eight replicas on four nodes.
  const Cluster cluster = small_cluster(4, 0);
  Strategy strategy = small_strategy(1, 8, 1, 1, 1);
  Constants constants;
  constants.link_latency_seconds = 1e-3;
  constants.device_latency_seconds = 1e-5;
  constants.gradient_bucket_bytes = 4e6;
  const auto seconds = [&](double parameters, double tensors) {
    return message_seconds(strategy, cluster, 0, parameters, tensors, constants);
  };
  // Two and a half buckets are three; two levels up and down, twice.
  EXPECT_NEAR(seconds(2.5e6, 7), 3 * 4 * 2 * 1e-3, 1e-12);
  EXPECT_NEAR(seconds(1e6, 7), 1 * 4 * 2 * 1e-3, 1e-12);
  strategy.shard_optimizer_state = true;
  // Of a ring's seven steps three are between nodes.
  EXPECT_NEAR(seconds(2.5e6, 7), 7 * (3 * 1e-3 + 4 * 1e-5), 1e-12);
  strategy = small_strategy(8, 1, 1, 1, 8);
  EXPECT_EQ(seconds(2.5e6, 7), 0);
}

// 8 MB of gradients over a ring of four between two nodes take 12 ms; all of them come and go as
// parameters of two bytes, twice, and leave as gradients of four.
TEST(ShardedParameters, AreExchangedForEveryMicrobatchBesideIt) {
  const DescribedModel model = small_model(2);
  const Cluster cluster = small_cluster(2, 0);
  Strategy strategy = small_strategy(1, 4, 1, 1, 2);
  const double exchanged = 12e-3 * (2 * 2 + 4) / (2 * 4);
  strategy.shard_optimizer_state = strategy.shard_parameters = true;
  const StrategyCost cost = price(model, cluster, strategy, bare_constants());
  ASSERT_NEAR(cost.compute_seconds, 4 * 2 * 3e-3, 1e-12); // four microbatches
  EXPECT_NEAR(cost.gradient_seconds, 4 * exchanged - 24e-3, 1e-9);
  // Behind a long computation one layer's part of it remains.
  DescribedModel longer = model;
  for (MeasuredLayer& layer : longer.measured().layers) {
    layer.forward_seconds_per_sample["fast"][1] = 1;
  }
  EXPECT_NEAR(
      price(longer, cluster, strategy, bare_constants()).gradient_seconds, exchanged / 2, 1e-9);
  DescribedModel full = model;
  full.precision = Precision::kFull;
  EXPECT_NEAR(
      price(full, cluster, strategy, bare_constants()).gradient_seconds,
      4 * 12e-3 * 12 / 8 - 24e-3,
      1e-9);
}

TEST(Stalls, AreOfTheMessagesThatAStageHas) {
  Cluster cluster = small_cluster(2, 0);
  cluster.stalling_share = 0.5;
  cluster.stall_seconds = 1;
  EXPECT_EQ(stall_seconds(cluster, PlacementLinks{}, 1, 5), 2 * 5);
  EXPECT_EQ(stall_seconds(cluster, PlacementLinks{}, 2, 5), 2 * 5 + 2);
  EXPECT_EQ(stall_seconds(cluster, PlacementLinks{}, 4, 5), 4 * 5 + 6);
  cluster.stalling_share = 0.2; // 0.64 of all jobs have none
  EXPECT_EQ(stall_seconds(cluster, PlacementLinks{}, 4, 5), 0);
}

} // namespace
} // namespace tessera::cost
