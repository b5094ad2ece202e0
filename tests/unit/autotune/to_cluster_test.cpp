#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/autotune/probe/probe.h"
#include "tessera/base/error.h"
#include "tessera/cost/strategy_cost.h"

namespace tessera::autotune {
namespace {

RankMeasurement rank_on(const std::string& host, double slower = 1) {
  RankMeasurement one;
  one.host = host;
  one.processor = "a processor";
  one.free_bytes = 4e9;
  one.speed.products["f32"] = {{8, 1e-6 * slower}, {512, 1e-3 * slower}};
  one.speed.moves = one.speed.functions = one.speed.random = {{16, 1e-6 * slower}};
  one.alone_layers_per_s = 100 / slower;
  one.busy_layers_per_s = {50 / slower, 60 / slower};
  one.busy_bytes_per_s = 1e9 / slower;
  one.update_bytes_per_s = 2e9 / slower;
  return one;
}

PairFacts pair_of(int first, int second, double bytes_per_s) {
  PairFacts pair;
  pair.first = first;
  pair.second = second;
  pair.bytes_per_s = bytes_per_s;
  pair.latency_us = 1e10 / bytes_per_s;
  return pair;
}

TEST(ToCluster, RanksOfAHostShareItsCores) {
  const auto cluster =
      to_cluster({rank_on("a"), rank_on("a"), rank_on("a")}, {pair_of(0, 1, 1e9)}, {});
  ASSERT_EQ(cluster.nodes.size(), 1u);
  EXPECT_EQ(cluster.nodes[0].count, 3);
  EXPECT_NEAR(cluster.nodes[0].cores, 1.8, 1e-12); // 3 x 60 of 100
  EXPECT_EQ(cluster.nodes[0].intra_bytes_per_s, 1e9);
  EXPECT_NEAR(cluster.nodes[0].latency_seconds, 1e-5, 1e-12);
  EXPECT_EQ(cluster.kinds[0].name, "cpu");
  EXPECT_TRUE(cluster.measured);
}

TEST(ToCluster, OffloadingIsAsFastAsTheSlowestRanks) {
  std::vector<RankMeasurement> ranks(2, rank_on("a"));
  ranks[0].offload_bytes_per_s = 2e9;
  ranks[1].offload_bytes_per_s = 1e9;
  ranks[0].offload_room_bytes = ranks[1].offload_room_bytes = 5e9;
  auto kind = to_cluster(ranks, {pair_of(0, 1, 1e9)}, {}).kinds[0];
  EXPECT_EQ(kind.host_bytes_per_s, 1e9);
  EXPECT_EQ(kind.host_memory_bytes, 5e9);
  // One that cannot offload excludes it for all of its kind.
  ranks[1].offload_bytes_per_s = 0;
  kind = to_cluster(ranks, {pair_of(0, 1, 1e9)}, {}).kinds[0];
  EXPECT_EQ(kind.host_bytes_per_s, 0);
}

TEST(ToCluster, WhatOneRankWinsAnotherLoses) {
  std::vector<RankMeasurement> ranks(2, rank_on("a"));
  ranks[0].busy_layers_per_s = {80, 20, 55};
  ranks[1].busy_layers_per_s = {20, 80, 55};
  EXPECT_NEAR(to_cluster(ranks, {pair_of(0, 1, 1e9)}, {}).nodes[0].cores, 1.1, 1e-12);
}

TEST(ToCluster, CoresAreCountedAtTheSpeedOfTheirRound) {
  std::vector<RankMeasurement> ranks(2, rank_on("a"));
  // The machine is half as fast in the second round, and a burst of load meets the third.
  ranks[0].alone_by_round = {100, 50, 100};
  ranks[0].busy_layers_per_s = {75, 37.5, 20};
  ranks[1].busy_layers_per_s = {75, 37.5, 20};
  EXPECT_NEAR(to_cluster(ranks, {pair_of(0, 1, 1e9)}, {}).nodes[0].cores, 1.5, 1e-12);
}

TEST(ToCluster, NoMoreCoresThanProcessorsThatAllRanksMayUse) {
  std::vector<RankMeasurement> ranks(4, rank_on("a"));
  const std::vector<PairFacts> pairs = {pair_of(0, 1, 1e9)};
  EXPECT_NEAR(to_cluster(ranks, pairs, {}).nodes[0].cores, 2.4, 1e-12);
  for (RankMeasurement& rank : ranks) {
    rank.processors = {0, 1};
  }
  EXPECT_EQ(to_cluster(ranks, pairs, {}).nodes[0].cores, 2);
  // Bound to one of its own each, and to one of two in turn.
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    ranks[i].processors = {static_cast<std::int64_t>(i)};
  }
  EXPECT_NEAR(to_cluster(ranks, pairs, {}).nodes[0].cores, 2.4, 1e-12);
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    ranks[i].processors = {static_cast<std::int64_t>(i % 2)};
  }
  EXPECT_EQ(to_cluster(ranks, pairs, {}).nodes[0].cores, 2);
}

TEST(ToCluster, HostsOfLikeSpeedAreOneKind) {
  const std::vector<PairFacts> pairs = {pair_of(0, 1, 1e8), pair_of(0, 2, 2e7), pair_of(1, 2, 2e7)};
  const auto cluster = to_cluster({rank_on("a"), rank_on("b", 1.05), rank_on("c", 2)}, pairs, {});
  ASSERT_EQ(cluster.kinds.size(), 2u);
  EXPECT_EQ(cluster.nodes[0].kind, cluster.nodes[1].kind);
  EXPECT_EQ(cluster.kinds[1].name, "cpu-c");
  // A kind is as fast as its slowest rank.
  EXPECT_NEAR(cluster.kinds[0].memory_bytes_per_s, 1e9 / 1.05, 1);
  EXPECT_NEAR(cluster.kinds[0].update_bytes_per_s, 2e9 / 1.05, 1);
  EXPECT_EQ(cluster.between(0, 1), 1e8);
  EXPECT_EQ(cluster.between(2, 0), 2e7);
  EXPECT_EQ(cluster.nodes[0].inter_bytes_per_s, 1e8);
  EXPECT_EQ(cluster.nodes[2].inter_bytes_per_s, 2e7);
}

TEST(ToCluster, WhatWasNotMeasuredIsLikeItsNeighbours) {
  // Ranks 0 and 1 on a, 2 and 3 on b, 4 on c.
  const std::vector<RankMeasurement> ranks = {
      rank_on("a"), rank_on("a"), rank_on("b"), rank_on("b"), rank_on("c")};
  const auto cluster =
      to_cluster(ranks, {pair_of(0, 1, 1e9), pair_of(0, 2, 1e8), pair_of(2, 4, 3e7)}, {});
  EXPECT_EQ(cluster.nodes[1].intra_bytes_per_s, 1e9);
  EXPECT_NEAR(cluster.nodes[1].latency_seconds, 1e-5, 1e-12);
  EXPECT_EQ(cluster.nodes[2].intra_bytes_per_s, 0); // one rank
  ASSERT_EQ(cluster.links.size(), 3u);
  EXPECT_EQ(cluster.between(1, 2), 3e7);
  EXPECT_EQ(cluster.between(0, 2), 6.5e7); // between those of a and of c
  EXPECT_EQ(cluster.nodes[2].inter_bytes_per_s, 3e7); // measured ones only
  EXPECT_EQ(cluster.quality.inferred, 2); // b inside, a to c
  EXPECT_EQ(
      to_cluster(
          {rank_on("a"), rank_on("a"), rank_on("b")},
          {pair_of(0, 1, 1e9), pair_of(0, 2, 1e8), pair_of(1, 2, 1e8)},
          {})
          .quality.inferred,
      0);
}

TEST(ToCluster, ASlowPairOfHostsIsSeenByReplicasOnThem) {
  const std::vector<RankMeasurement> ranks = {rank_on("a"), rank_on("b"), rank_on("c")};
  cost::DescribedModel model;
  model.global_batch_size = 6;
  model.layers.emplace_back();
  model.layers[0].parameters = 1'000'000;
  model.measured().layers.push_back({.forward_seconds_per_sample = {{"cpu", {{1, 1e-3}}}}});
  cost::Strategy strategy;
  strategy.dp = 3;
  strategy.boundaries = {0, 1};
  strategy.device_of_rank = {0, 1, 2};
  const auto gradients = [&](double between_b_and_c) {
    const auto cluster = to_cluster(
        ranks, {pair_of(0, 1, 1e8), pair_of(0, 2, 1e8), pair_of(1, 2, between_b_and_c)}, {});
    return cost::price(model, cluster, strategy).gradient_seconds;
  };
  EXPECT_GT(gradients(1e6), 20 * gradients(1e8));
}

TEST(ToCluster, ScatteredRanksAreRefused) {
  try {
    to_cluster({rank_on("a"), rank_on("b"), rank_on("a")}, {pair_of(0, 1, 1e8)}, {});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("--map-by"));
  }
}

TEST(ToCluster, OtherProgramsAreWhatNoRankOfTheMachineUsed) {
  std::vector<RankMeasurement> ranks(4, rank_on("a"));
  const std::vector<PairFacts> pairs = {pair_of(0, 1, 1e9), pair_of(2, 3, 1e9), pair_of(0, 2, 1e9)};
  ranks[2].host = ranks[3].host = "b";
  for (RankMeasurement& rank : ranks) {
    rank.machine = "one"; // both hosts are namespaces of it
    rank.elapsed_seconds = 10;
    rank.own_seconds = 4;
    rank.machine_seconds = 19;
  }
  EXPECT_NEAR(*to_cluster(ranks, pairs, {}).quality.foreign_processors, 0.3, 1e-9);
  ranks[2].machine = ranks[3].machine = "other";
  EXPECT_NEAR(*to_cluster(ranks, pairs, {}).quality.foreign_processors, 1.1, 1e-9);
  for (RankMeasurement& rank : ranks) {
    rank.machine_seconds = -1; // the system does not tell
  }
  EXPECT_FALSE(to_cluster(ranks, pairs, {}).quality.foreign_processors.has_value());
}

} // namespace
} // namespace tessera::autotune
