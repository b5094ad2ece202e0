// Replicas that are alike are simulated once, with the result of all of them to the bit.
#include "tessera/simulator/alike.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/index.h"

#include "tests/unit/simulator/bare.h"
#include "tests/unit/simulator/chance.h"

namespace tessera::simulator {
namespace {

TEST(FindAlike, ReplicasAreAlikeWhoseLinksAre) {
  // Two replicas on each of links 0 and 1, one on link 2.
  std::vector<ReplicaWork> replicas(5, ReplicaWork{.figures = {1}, .uses = {{0}}});
  replicas[2].uses = replicas[3].uses = {{1}};
  replicas[4].uses = {{2}};
  const std::vector<double> alike_links = {9, 9, 9};
  EXPECT_THAT(find_alike(alike_links, replicas, {}).first, testing::ElementsAre(0, 0, 0, 0, 4));
  EXPECT_THAT(find_alike({9, 8, 9}, replicas, {}).first, testing::ElementsAre(0, 0, 2, 2, 4));
  EXPECT_THAT(
      find_alike(alike_links, replicas, {{{1}}}).first, testing::ElementsAre(0, 0, 2, 2, 4));
  replicas[1].figures = {2};
  EXPECT_THAT(find_alike(alike_links, replicas, {}).first, testing::ElementsAre(0, 1, 2, 2, 4));
}

TEST(FindAlike, WhatSharesALinkWithADifferentReplicaIsDifferent) {
  // Replicas i and i + 1 share link i; the last has another figure, so none is like another.
  std::vector<ReplicaWork> chain;
  for (int i = 0; i < 6; ++i) {
    chain.push_back({.figures = {i == 5 ? 2.0 : 1.0}, .uses = {{i}, {i + 1}}});
  }
  const std::vector<double> links(7, 1.0);
  EXPECT_TRUE(find_alike(links, chain, {}).all_differ());
  // In a ring without it all are alike.
  chain.back() = {.figures = {1}, .uses = {{5}, {0}}};
  EXPECT_THAT(find_alike(links, chain, {}).first, testing::Each(0));
  EXPECT_THAT(
      uses_for_all(find_alike(links, chain, {}), chain, 0),
      testing::ElementsAre(LinkUse{0, 1}, LinkUse{0, 1}));
}

// Models, clusters and strategies, many of whose replicas are alike.
class Draw : public Chance {
 public:
  using Chance::Chance;

  cost::DescribedModel model(bool divisible) {
    const int layers = from(2, 6);
    auto model =
        small_model(layers, one_in(2) ? 0.3 : 0, divisible ? "transformer_layer" : "other");
    for (auto& layer : model.layers) {
      layer.output_elements_per_sample = one_in(2) ? 1'000'000 : 1'000;
      layer.parameters = from(1, 20) * 1'000'000;
    }
    if (one_in(4)) {
      model.layers.back().shares_parameters_with = "layer.0";
    }
    if (!divisible && one_in(3)) {
      returns_home(model);
    }
    return model;
  }

  cost::Cluster cluster() {
    cost::Cluster cluster = small_cluster(from(1, 6), one_in(3) ? from(1, 2) : 0);
    const int count = from(1, 4);
    const double cores = one_in(3) ? from(1, 3) : 0;
    for (cost::Node& node : cluster.nodes) {
      node.count = one_in(8) ? from(1, 4) : count;
      node.cores = cores;
      node.inter_bytes_per_s = one_in(6) ? 3e8 : 7e8;
    }
    const int nodes = static_cast<int>(cluster.nodes.size());
    if (nodes > 1 && one_in(3)) {
      cluster.links.push_back({0, nodes - 1, 1e8});
    }
    return cluster;
  }

  // Returns one without devices where none fits.
  cost::Strategy strategy(const cost::Cluster& cluster, int layers, bool divisible) {
    const int devices = cluster.device_count();
    std::vector<cost::Strategy> all;
    for (int pp = 1; pp <= std::min(layers, devices); ++pp) {
      for (const int tp : {1, 2}) {
        const int dp = devices / pp / tp;
        if (dp > 1 && pp * dp * tp == devices && (tp == 1 || divisible)) {
          for (const char* letters : {"PDT", "DPT", "TDP"}) {
            all.push_back(small_strategy(pp, dp, tp, 1, layers, letters));
          }
        }
      }
    }
    if (all.empty()) {
      return {};
    }
    auto one = all[at(from(0, static_cast<int>(all.size()) - 1))];
    if (one_in(5)) {
      std::shuffle(one.device_of_rank.begin(), one.device_of_rank.end(), random_);
    }
    one.schedule = one_in(4) ? cost::Schedule::kSimple : cost::Schedule::kInterleaved;
    one.active_microbatches = one_in(2) ? one.pp + from(0, 2) : 0;
    if (one.active_microbatches > 0 && one.pp > 1 && layers >= 2 * one.pp) {
      one.stages_per_rank = 2;
      one.boundaries = cost::even_cuts(layers, 2 * one.pp);
    }
    one.overlap_gradients = one_in(2);
    one.shard_optimizer_state = one_in(3);
    return one;
  }

 private:
  static void returns_home(cost::DescribedModel& model) {
    cost::TracedModel traced;
    for (auto& layer : model.layers) {
      cost::TracedLayer seconds;
      seconds.microbatch_seconds["fast"][1] = {1e-3, 2e-3};
      seconds.microbatch_seconds["slow"][1] = {2e-3, 4e-3};
      traced.whole.layers.push_back(seconds);
      layer.shares_parameters_with = "";
    }
    traced.whole.tail_seconds["fast"][1] = {0.6e-3, 1.2e-3};
    traced.whole.tail_seconds["slow"][1] = {1.2e-3, 2.4e-3};
    model.source = traced;
    model.returns_home = true;
  }
};

TEST(AlikeReplicas, GiveTheBitsOfAllReplicas) {
  int simulated = 0;
  int joined = 0;
  int partly = 0; // of which some, but not all, are alike
  for (unsigned seed = 0; seed < 3000; ++seed) {
    Draw draw(seed);
    const bool divisible = draw.one_in(2);
    auto model = draw.model(divisible);
    const auto cluster = draw.cluster();
    auto strategy = draw.strategy(cluster, static_cast<int>(model.layers.size()), divisible);
    if (strategy.device_of_rank.empty()) {
      continue;
    }
    model.global_batch_size = strategy.dp * draw.from(1, 6);
    SimulationOptions options;
    options.keep_events = false;
    if (draw.one_in(6)) {
      options.slow_devices[draw.from(0, cluster.device_count() - 1)] = 1.5;
    }
    const auto once = simulate(model, cluster, strategy, options);
    options.alike_once = false;
    const auto all = simulate(model, cluster, strategy, options);
    const std::string text =
        str("seed ",
            seed,
            ": pp ",
            strategy.pp,
            ", dp ",
            strategy.dp,
            ", tp ",
            strategy.tp,
            ", ",
            once.simulated_replicas,
            " simulated");
    EXPECT_EQ(once.iteration_seconds, all.iteration_seconds) << text;
    EXPECT_EQ(once.bubble_share, all.bubble_share) << text;
    EXPECT_EQ(once.memory_high_water, all.memory_high_water) << text;
    for (std::size_t rank = 0; rank < all.memory_over_time.size(); ++rank) {
      ASSERT_EQ(once.memory_over_time[rank].size(), all.memory_over_time[rank].size()) << text;
      for (std::size_t i = 0; i < all.memory_over_time[rank].size(); ++i) {
        EXPECT_EQ(once.memory_over_time[rank][i].time_us, all.memory_over_time[rank][i].time_us)
            << text;
      }
    }
    EXPECT_EQ(all.simulated_replicas, strategy.dp);
    EXPECT_EQ(once.tasks * strategy.dp, all.tasks * once.simulated_replicas) << text;
    ++simulated;
    joined += once.simulated_replicas < strategy.dp ? 1 : 0;
    partly += once.simulated_replicas < strategy.dp && once.simulated_replicas > 1 ? 1 : 0;
  }
  EXPECT_GT(simulated, 1500);
  EXPECT_GT(joined, simulated / 4);
  EXPECT_GT(partly, simulated / 20);
}

TEST(AlikeReplicas, OfWhichOneIsSlowerAreNotSimulatedOnce) {
  auto model = small_model(4);
  model.global_batch_size = 32;
  const auto cluster = small_cluster(8, 0);
  const auto strategy = small_strategy(2, 8, 1, 1, 4);
  SimulationOptions options;
  options.keep_events = false;
  const auto replicas = [&] {
    return simulate(model, cluster, strategy, options).simulated_replicas;
  };
  EXPECT_EQ(replicas(), 1);
  options.slow_devices[0] = 2; // and it shares links with replica 1
  EXPECT_EQ(replicas(), 3);
  options.slow_devices.clear();
  options.jitter = 0.01;
  EXPECT_EQ(replicas(), 8);
  options.jitter = 0;
  options.keep_events = true;
  EXPECT_EQ(replicas(), 8);
}

// 200 stages of 50 replicas on nodes of eight, which hold parts of two stages: only every two
// neighbours are alike. What it costs is counted, since seconds are those of a machine.
TEST(AlikeReplicas, TenThousandDevicesTakeFewRates) {
  constexpr int kStages = 200;
  constexpr int kMicrobatches = 20;
  auto model = small_model(kStages, 0.005);
  model.global_batch_size = 50 * kMicrobatches;
  for (auto& layer : model.layers) {
    layer.output_elements_per_sample = 200'000;
  }
  auto cluster = small_cluster(1250, 0);
  for (auto& node : cluster.nodes) {
    node.count = 8;
  }
  auto strategy = small_strategy(kStages, 50, 1, 1, kStages);
  SimulationOptions options;
  options.keep_events = false;
  const auto result = simulate(model, cluster, strategy, options);
  EXPECT_EQ(result.simulated_replicas, 25);
  EXPECT_EQ(result.tasks, 25 * 2 * kStages * kMicrobatches);
  EXPECT_LT(result.computed_rates, 8 * result.tasks);
  // Nodes that hold one stage each.
  strategy = small_strategy(kStages, 50, 1, 1, kStages, "DPT");
  const auto aligned = simulate(model, cluster, strategy, options);
  EXPECT_EQ(aligned.simulated_replicas, 1);
  EXPECT_LT(aligned.computed_rates, 2 * aligned.tasks);
}

} // namespace
} // namespace tessera::simulator
