// What runs beside computation: buckets of gradients, sends, and what devices of a node exchange.
#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "tessera/cost/gradient_overlap.h"
#include "tessera/simulator/simulate.h"

#include "tests/unit/simulator/bare.h"

namespace tessera::simulator {
namespace {

double seconds_of(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const cost::Strategy& strategy,
    const SimulationOptions& options) {
  return simulate(model, cluster, strategy, options).iteration_seconds;
}

cost::Cluster single_devices(int count) {
  cost::Cluster cluster = small_cluster(count, 0);
  for (cost::Node& node : cluster.nodes) {
    node.count = 1;
  }
  return cluster;
}

TEST(Buckets, OfReplicasTakeWhatTheEstimateSays) {
  std::mt19937_64 random(5);
  const auto draw = [&random](double most) {
    return most * static_cast<double>(random() >> 11) * 0x1.0p-53;
  };
  int hidden_in_part = 0;
  for (int i = 0; i < 100; ++i) {
    auto model = small_model(1);
    model.layers[0].parameters = 1 + static_cast<std::int64_t>(draw(2e7));
    model.measured().layers[0].forward_seconds_per_sample["fast"][1] = draw(5e-3);
    SimulationOptions options = bare();
    options.constants.gradient_bucket_bytes = 1e6 + draw(2e7);
    cost::Strategy strategy = small_strategy(1, 4, 1, 2, 1);
    const cost::Cluster cluster = single_devices(4);
    const double after = seconds_of(model, cluster, strategy, options);
    strategy.overlap_gradients = true;
    const double found = seconds_of(model, cluster, strategy, options);
    EXPECT_NEAR(found, cost::price(model, cluster, strategy, options.constants).seconds, 1e-9) << i;
    strategy.shard_optimizer_state = true;
    const double divided = seconds_of(model, cluster, strategy, options);
    EXPECT_NEAR(divided, cost::price(model, cluster, strategy, options.constants).seconds, 1e-9);
    EXPECT_GE(divided, found - 1e-12);
    hidden_in_part += found < after - 1e-6 ? 1 : 0;
  }
  EXPECT_GT(hidden_in_part, 50);
}

TEST(Buckets, OfAPipelineAreNearTheEstimate) {
  auto model = small_model(8);
  for (auto& layer : model.layers) {
    layer.parameters = 8'000'000;
    layer.output_elements_per_sample = 0;
  }
  SimulationOptions options = bare();
  options.constants.gradient_bucket_bytes = 4e6;
  const cost::Cluster cluster = single_devices(8);
  for (const int pp : {2, 4}) {
    auto strategy = small_strategy(pp, 8 / pp, 1, 1, 8, "DPT");
    const double after = seconds_of(model, cluster, strategy, options);
    strategy.overlap_gradients = true;
    const double beside = seconds_of(model, cluster, strategy, options);
    EXPECT_LT(beside, after - 3e-3) << pp;
    EXPECT_NEAR(beside / cost::price(model, cluster, strategy, options.constants).seconds, 1, 0.05)
        << pp;
  }
}

TEST(Buckets, ATravellingOneHoldsUpTheNext) {
  // One bucket, of which nothing hides, and many, of which all but one do where links are fast.
  auto model = small_model(1);
  model.layers[0].parameters = 10'000'000;
  auto strategy = small_strategy(1, 2, 1, 8, 1);
  strategy.overlap_gradients = true;
  SimulationOptions options = bare();
  const cost::Cluster cluster = single_devices(2);
  const double compute = 8 * 3e-3;
  options.constants.gradient_bucket_bytes = 1e12;
  EXPECT_NEAR(seconds_of(model, cluster, strategy, options), compute + 40e-3, 1e-9);
  // Ten buckets of 4 ms each, the first of which is full after a tenth of the backward.
  options.constants.gradient_bucket_bytes = 4e6;
  EXPECT_NEAR(seconds_of(model, cluster, strategy, options), 8e-3 + 16e-3 / 10 + 40e-3, 1e-9);
}

TEST(Buckets, OfARankInTurnsHoldAllItsStages) {
  // Two replicas of two ranks, of four layers each in two turns.
  auto model = small_model(8);
  for (auto& layer : model.layers) {
    layer.parameters = 1'000'000; // 4 MB
    layer.output_elements_per_sample = 0;
  }
  auto strategy = small_strategy(2, 2, 1, 1, 8, "DPT");
  strategy.stages_per_rank = 2;
  strategy.boundaries = {0, 2, 4, 6, 8};
  strategy.active_microbatches = 4;
  strategy.overlap_gradients = true;
  const cost::Cluster cluster = single_devices(4);
  SimulationOptions options = bare();
  const auto starts = [&](double bucket_bytes) {
    options.constants.gradient_bucket_bytes = bucket_bytes;
    const auto result = simulate(model, cluster, strategy, options);
    std::vector<double> starts; // of rank 0's reductions
    double last_backward = 0;
    double bytes = 0;
    for (const auto& event : result.timeline.events) {
      if (event.rank == 0 && event.category == "backward") {
        last_backward = std::max(last_backward, event.end_us);
      }
      if (event.rank == 0 && event.name == "all_reduce rdp") {
        starts.push_back(event.start_us);
        bytes += static_cast<double>(event.bytes);
      }
    }
    EXPECT_NEAR(bytes, 4 * 4e6, 1);
    for (double& start : starts) {
      start -= last_backward;
    }
    return starts;
  };
  // The runtime makes one bucket of what fits, so nothing leaves before the last stage has ended.
  EXPECT_EQ(starts(25e6), (std::vector<double>{0}));
  // Of two, the first holds the stage whose backwards end first.
  const auto halves = starts(8e6);
  ASSERT_EQ(halves.size(), 2u);
  EXPECT_LT(halves[0], -4e3 + 1e-6); // two layers' backward
  EXPECT_GE(halves[1], 0);
  // Three end inside of a stage, and with it.
  EXPECT_EQ(starts(6e6).size(), 3u);
}

TEST(InsideANode, WhatADeviceSendsSharesItsLink) {
  auto model = small_model(2);
  for (auto& layer : model.layers) {
    layer.output_elements_per_sample = 12'500'000; // 10 ms for a microbatch
  }
  auto strategy = small_strategy(2, 1, 1, 4, 2);
  strategy.schedule = cost::Schedule::kSimple;
  const double found = seconds_of(model, small_cluster(1, 0), strategy, bare());
  // 40 ms of sends both ways, and what computes in front, between and behind; if the sends did not
  // share the link it would take 80 ms.
  EXPECT_GT(found, 100e-3);
  EXPECT_LT(found, 120e-3);
}

TEST(InsideANode, OtherDevicesHaveLinksOfTheirOwn) {
  auto model = small_model(2);
  for (auto& layer : model.layers) {
    layer.output_elements_per_sample = 12'500'000;
  }
  cost::Cluster cluster = small_cluster(1, 0);
  cluster.nodes[0].count = 4;
  auto strategy = small_strategy(2, 2, 1, 4, 2);
  strategy.schedule = cost::Schedule::kSimple;
  SimulationOptions options = bare();
  options.constants.gradient_wire_bytes = 1e-9;
  const double two = seconds_of(model, cluster, strategy, options);
  model.global_batch_size = 8;
  const double one = seconds_of(model, small_cluster(1, 0), small_strategy(2, 1, 1, 4, 2), options);
  auto simple = small_strategy(2, 1, 1, 4, 2);
  simple.schedule = cost::Schedule::kSimple;
  EXPECT_NEAR(two, seconds_of(model, small_cluster(1, 0), simple, options), 1e-6);
  EXPECT_GT(one, 0);
}

// Four stages on two nodes: what the second node's devices send goes at that node's bandwidth.
TEST(InsideANode, EveryNodeHasABandwidthOfItsOwn) {
  auto model = small_model(4);
  model.global_batch_size = 1;
  for (auto& layer : model.layers) {
    layer.output_elements_per_sample = 0;
  }
  model.layers[2].output_elements_per_sample = 500'000; // 1 MB
  cost::Cluster cluster = small_cluster(2, 0);
  const auto strategy = small_strategy(4, 1, 1, 1, 4);
  for (const double bytes_per_s : {0.1e9, 1e9, 20e9}) {
    cluster.nodes[1].intra_bytes_per_s = bytes_per_s;
    EXPECT_NEAR(
        seconds_of(model, cluster, strategy, bare()), 4 * 3e-3 + 2 * 1e6 / bytes_per_s, 1e-9)
        << bytes_per_s;
  }
}

TEST(Sends, HideBesideComputation) {
  auto model = small_model(2);
  const auto cluster = single_devices(2);
  auto strategy = small_strategy(2, 1, 1, 1, 2);
  strategy.active_microbatches = 6;
  for (const std::int64_t elements : {0, 200'000, 400'000}) { // up to 0.8 of 3 ms
    for (auto& layer : model.layers) {
      layer.output_elements_per_sample = elements;
    }
    const double send = 2e-9 * static_cast<double>(elements);
    EXPECT_NEAR(
        seconds_of(model, cluster, strategy, bare()), (16 - 1 + 2) * 3e-3 + 2 * send, 1.1e-3)
        << elements;
  }
}

TEST(Memory, OfATaskIsThePeakAndFallsBehindIt) {
  auto model = small_model(4, 0, "transformer_layer");
  const auto strategy = small_strategy(2, 1, 1, 1, 4);
  const auto result = simulate(model, small_cluster(1, 0), strategy, bare());
  for (std::size_t k = 0; k < 2; ++k) {
    double most = 0;
    double least = 1e30;
    for (const MemorySample& sample : result.memory_over_time[k]) {
      most = std::max(most, sample.bytes);
      least = std::min(least, sample.bytes);
    }
    EXPECT_NEAR(most, result.memory_high_water[k], 1) << k;
    EXPECT_LT(least, most) << k;
    // Behind the last task nothing is in flight and nothing runs.
    EXPECT_EQ(result.memory_over_time[k].back().bytes, least) << k;
  }
}

// Gradients of a traced model come with the first backward of a stage, and stay.
TEST(Memory, GradientsAreThereBehindTheFirstBackward) {
  auto model = small_model(2);
  cost::TracedModel traced;
  for (std::size_t i = 0; i < 2; ++i) {
    cost::TracedLayer layer;
    layer.microbatch_seconds["fast"][1] = {1e-3, 2e-3};
    layer.kept_bytes_per_sample = 100e6;
    layer.working = layer.deferring = cost::SampleBytes{1e6, 0};
    traced.whole.layers.push_back(layer);
  }
  traced.whole.tail_seconds["fast"][1] = {};
  model.source = traced;
  model.global_batch_size = 4;
  auto cluster = small_cluster(1, 0);
  cluster.kinds.resize(1);
  auto strategy = small_strategy(2, 1, 1, 1, 2);
  strategy.activation_checkpointing = false;
  for (const auto schedule : {cost::Schedule::kSimple, cost::Schedule::kInterleaved}) {
    strategy.schedule = schedule;
    const auto estimate = cost::price(model, cluster, strategy, bare().constants);
    const auto result = simulate(model, cluster, strategy, bare());
    for (std::size_t k = 0; k < 2; ++k) {
      const cost::StageMemory& memory = estimate.stages[k].memory;
      const auto& samples = result.memory_over_time[k];
      const double state = memory.weights + memory.optimizer;
      const double gradients = 1e6 * (2 + bare().constants.gradient_copies_bytes);
      EXPECT_NEAR(samples.front().bytes, state + 100e6 + 1e6, 1);
      EXPECT_NEAR(samples.back().bytes, state + gradients, 1);
      EXPECT_NEAR(result.memory_high_water[k], memory.total(), 1);
    }
  }
}

} // namespace
} // namespace tessera::simulator
