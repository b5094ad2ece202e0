// What measured layers cost: every measured figure has its part in the price, and none is a
// constant of ours.
#include <cmath>

#include <gtest/gtest.h>

#include "tessera/cost/strategy_cost.h"

#include "tests/unit/cost/small_cases.h"

namespace tessera::cost {
namespace {

// Devices of which the computation alone takes time.
Cluster without_traffic(int fast_nodes, int slow_nodes) {
  Cluster cluster = small_cluster(fast_nodes, slow_nodes);
  for (Node& node : cluster.nodes) {
    node.intra_bytes_per_s = 1e30;
    node.inter_bytes_per_s = 1e30;
  }
  return cluster;
}

// Layers of both kinds, which a second device makes less than twice as fast.
DescribedModel mixed_model() {
  DescribedModel model = small_model(6, 0.3);
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    model.layers[i].kind = i % 2 == 0 ? "transformer_layer" : "other";
    for (auto& [device, seconds] : model.measured().layers[i].forward_seconds_per_sample) {
      seconds[2] = 0.7 * seconds[1];
    }
  }
  return model;
}

void scale(DescribedModel& model, double factor, int degree) {
  for (MeasuredLayer& layer : model.measured().layers) {
    for (auto& [device, by_degree] : layer.forward_seconds_per_sample) {
      for (auto& [measured_at, seconds] : by_degree) {
        seconds *= degree == 0 || measured_at == degree ? factor : 1;
      }
    }
    for (auto& [device, seconds] : layer.fixed_seconds) {
      seconds *= factor;
    }
  }
}

constexpr int kAllDegrees = 0;

TEST(LayerSeconds, ScalingAllMeasuredTimesScalesEveryPrice) {
  constexpr double kFactor = 3.7;
  for (const bool fixed : {false, true}) {
    DescribedModel model = mixed_model();
    Cluster cluster = without_traffic(1, 1);
    for (MeasuredLayer& layer : model.measured().layers) {
      if (fixed) {
        layer.fixed_seconds = {{"fast", 2e-4}};
      }
    }
    cluster.kinds[0].launch_seconds = 2e-5;
    Cluster slower = cluster;
    slower.kinds[0].launch_seconds *= kFactor;
    DescribedModel scaled = model;
    scale(scaled, kFactor, kAllDegrees);
    Constants constants = bare_constants();
    constants.transformer_operators = 27;
    int priced = 0;
    for (const int tp : {1, 2}) {
      for (const int pp : {1, 2}) {
        for (const int mbs : {1, 2, 4}) {
          for (const bool recomputes : {false, true}) {
            Strategy strategy = small_strategy(pp, 4 / tp / pp, tp, mbs, 6);
            strategy.activation_checkpointing = recomputes;
            const double before = price(model, cluster, strategy, constants).seconds;
            const double after = price(scaled, slower, strategy, constants).seconds;
            EXPECT_NEAR(after / before, kFactor, 1e-9) << pp << " " << tp << " " << mbs;
            ++priced;
          }
        }
      }
    }
    EXPECT_EQ(priced, 24);
  }
}

TEST(LayerSeconds, TimesMeasuredAtADegreeArePricedAtIt) {
  const DescribedModel model = mixed_model();
  const Cluster cluster = without_traffic(1, 0);
  const auto seconds = [&](const DescribedModel& of, int tp) {
    return price(of, cluster, small_strategy(1, 2 / tp, tp, 2, 6), bare_constants()).seconds;
  };
  DescribedModel slower = model;
  scale(slower, 10, 2);
  EXPECT_NEAR(seconds(slower, 2), 10 * seconds(model, 2), 1e-9);
  EXPECT_EQ(seconds(slower, 1), seconds(model, 1));
}

TEST(LayerSeconds, AllReducesThatWereMeasuredCountOnceInsideANode) {
  DescribedModel model = small_model(1, 0, "transformer_layer");
  model.layers[0].output_elements_per_sample = 1'000'000;
  model.global_batch_size = 1;
  Strategy strategy = small_strategy(1, 1, 2, 1, 1);
  strategy.activation_checkpointing = false;
  const auto stage = [&](const Cluster& cluster) {
    return price(model, cluster, strategy, bare_constants()).stages[0];
  };
  // Two megabytes twice over 10 GB/s, of the millisecond that was measured; four times in all.
  const StageCost inside = stage(small_cluster(1, 0));
  EXPECT_NEAR(inside.compute_seconds, 3 * (1e-3 - 4e-4), 1e-12);
  EXPECT_NEAR(inside.tensor_seconds, 2 * 4e-4, 1e-12);
  // Between nodes they are what the network makes of them. Only nodes of two show how they were
  // measured.
  Cluster apart = small_cluster(2, 0);
  apart.nodes[0].count = 1;
  apart.nodes[1].count = 1;
  const StageCost between = stage(apart);
  EXPECT_NEAR(between.compute_seconds, 3 * 1e-3, 1e-12);
  EXPECT_NEAR(between.tensor_seconds, 2 * 4e-3, 1e-12);
}

TEST(LayerSeconds, SmallLayersDependOnTheMicrobatchAndTheDegree) {
  DescribedModel model = small_model(1, 0, "transformer_layer");
  model.measured().layers[0].forward_seconds_per_sample = {{"fast", {{1, 1e-4}, {2, 6e-5}}}};
  const auto compute = [&](double launch, int tp, int mbs) {
    Cluster cluster = without_traffic(1, 0);
    cluster.kinds = {cluster.kinds[0]};
    cluster.kinds[0].launch_seconds = launch;
    Constants constants = bare_constants();
    constants.transformer_operators = 27;
    return price(model, cluster, small_strategy(1, 2 / tp, tp, mbs, 1), constants)
        .stages[0]
        .compute_seconds;
  };
  // A host that needs 2 ms for the operators did not run the layer in 0.1 ms, so it says nothing.
  for (const double launch : {75e-6, 0.0}) {
    EXPECT_NEAR(compute(launch, 1, 4), 4 * compute(launch, 1, 1), 1e-12);
    EXPECT_NEAR(compute(launch, 2, 1), 0.6 * compute(launch, 1, 1), 1e-12);
  }
  // One of a microsecond an operator takes 27 of them once.
  EXPECT_NEAR(compute(1e-6, 1, 4) - compute(1e-6, 1, 1), 3 * 4 * 73e-6, 1e-12);
}

TEST(LayerSeconds, WhatDividingAddsIsLaunchingUpToTwiceTheLaunches) {
  DescribedModel model = small_model(1, 0, "transformer_layer");
  const auto compute = [&](double at_two, int mbs) {
    model.measured().layers[0].forward_seconds_per_sample = {{"fast", {{1, 1e-3}, {2, at_two}}}};
    Cluster cluster = without_traffic(1, 0);
    cluster.kinds = {cluster.kinds[0]};
    cluster.kinds[0].launch_seconds = 2e-4; // of one operator
    return price(model, cluster, small_strategy(1, 1, 2, mbs, 1), bare_constants())
        .stages[0]
        .compute_seconds;
  };
  // 0.2 ms of launches and half of 0.8 ms; then 0.1 ms more, which forward and recomputation pay;
  // then 0.9 ms more, of which 0.2 are launches and 0.7 work of every sample.
  const double even = 3 * 2e-4 + 4 * 4e-4;
  EXPECT_NEAR(compute(6e-4, 1), even, 1e-12);
  EXPECT_NEAR(compute(7e-4, 1), even + 2 * 1e-4, 1e-12);
  EXPECT_NEAR(compute(7e-4, 4), even + 2 * 1e-4 + 3 * 4 * 4e-4, 1e-12);
  EXPECT_NEAR(compute(1.5e-3, 4), 3 * 2e-4 + 2 * 2e-4 + 4 * 4 * 1.1e-3, 1e-12);
}

} // namespace
} // namespace tessera::cost
