#include "tessera/cost/strategy_cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

#include "tests/unit/cost/small_cases.h"

namespace tessera::cost {
namespace {

double sum_of_parts(const StrategyCost& cost) {
  return cost.compute_seconds + cost.tensor_seconds + cost.bubble_seconds + cost.transfer_seconds +
         cost.gradient_seconds + cost.optimizer_seconds;
}

// Four replicas of one layer on one node, whose all-reduce is all that takes time.
double gradient_seconds(double parameters, double bytes_per_s, double latency_seconds) {
  DescribedModel model = small_model(1);
  model.layers[0].parameters = static_cast<std::int64_t>(parameters);
  Cluster cluster = small_cluster(1, 0);
  cluster.nodes[0].count = 4;
  cluster.nodes[0].intra_bytes_per_s = bytes_per_s;
  Constants constants = bare_constants();
  constants.link_latency_seconds = latency_seconds;
  constants.gradient_wire_bytes = 4;
  return price(model, cluster, small_strategy(1, 4, 1, 1, 1), constants).gradient_seconds;
}

TEST(Price, AnAllReduceIsEquationThree) {
  EXPECT_DOUBLE_EQ(gradient_seconds(2e6, 2e9, 0), 2 * 3 * 8e6 / 4 / 2e9);
  EXPECT_DOUBLE_EQ(gradient_seconds(2e6, 2e9, 1e-3), 2 * 3 * 8e6 / 4 / 2e9 + 6e-3);
}

TEST(Price, OfStagesInTurnsOneFillsThePipeline) {
  DescribedModel model = small_model(16);
  const Cluster cluster = small_cluster(2, 0);
  Strategy strategy = small_strategy(4, 1, 1, 1, 16);
  strategy.active_microbatches = 8;
  const double before = price(model, cluster, strategy, bare_constants()).seconds;
  strategy.stages_per_rank = 2;
  strategy.boundaries = even_cuts(16, 8);
  const auto turns = [&](int batch) {
    model.global_batch_size = batch;
    const StrategyCost cost = price(model, cluster, strategy, bare_constants());
    EXPECT_NEAR(sum_of_parts(cost), cost.seconds, 1e-12);
    return cost;
  };
  const StrategyCost cost = turns(16);
  // A rank has four layers of 3 ms, forward and twofold backward, in two stages.
  const double of_rank = 12e-3;
  ASSERT_EQ(cost.stages.size(), 4u);
  EXPECT_DOUBLE_EQ(cost.stages[0].parameters, 4e6);
  EXPECT_NEAR(cost.stages[0].compute_seconds, of_rank, 1e-12);
  EXPECT_NEAR(cost.bubble_seconds, 3 * of_rank / 2, 1e-9);
  EXPECT_LT(cost.seconds, before - of_rank);
  // Seven cuts of 2 kB, inside a node or between two, and their gradients.
  const double inside = 2e3 / 10e9;
  const double between = 2e3 / 1e9;
  EXPECT_NEAR(cost.transfer_seconds, 2 * (4 * inside + 3 * between), 1e-12);
  // Two microbatches do not fill four ranks, whatever their turns: each passes all of them.
  EXPECT_NEAR(
      turns(2).seconds - turns(2).transfer_seconds - turns(2).gradient_seconds,
      4 * of_rank + of_rank / 2,
      1e-9);
}

TEST(Price, OnePipelineIsEquationFive) {
  const DescribedModel model = small_model(4);
  const Cluster cluster = small_cluster(2, 0);
  const Strategy strategy = small_strategy(4, 1, 1, 2, 4);
  const StrategyCost cost = price(model, cluster, strategy, bare_constants());
  // Two samples, forward and twofold backward; 8 microbatches.
  const double t = 2 * 3 * 1e-3;
  const double v = 2 * 1000 * 2;
  const double e = 2 * (v / 10e9) + v / 1e9; // two links inside, one between
  EXPECT_NEAR(cost.seconds, 7 * t + 4 * t + 2 * e, 1e-12);
  EXPECT_NEAR(cost.compute_seconds, 8 * t, 1e-12);
  EXPECT_NEAR(cost.bubble_seconds, 3 * t, 1e-12);
  EXPECT_NEAR(cost.seconds, sum_of_parts(cost), 1e-12);
}

TEST(Price, ASkipIsSentAcrossEveryCutThatItPasses) {
  // The output of layer 0 is used by layer 3 too, so layers 1 and 2 pass it on.
  DescribedModel model = small_model(4);
  const Cluster cluster = small_cluster(2, 0);
  const Strategy strategy = small_strategy(4, 1, 1, 2, 4);
  const double without = price(model, cluster, strategy, bare_constants()).transfer_seconds;
  model.layers[1].output_elements_per_sample += 1000;
  model.layers[2].output_elements_per_sample += 1000;
  const double v = 2 * 1000 * 2;
  EXPECT_NEAR(
      price(model, cluster, strategy, bare_constants()).transfer_seconds - without,
      2 * (v / 1e9 + v / 10e9), // the second cut is between nodes
      1e-15);
}

/// Returns the message of the error for a strategy on 4 devices, 4 layers, 16 samples.
std::string refusal(int pp, int dp, int tp, int mbs) {
  Strategy strategy;
  strategy.pp = pp;
  strategy.dp = dp;
  strategy.tp = tp;
  strategy.microbatch_size = mbs;
  strategy.boundaries = even_cuts(4, std::min(pp, 4));
  strategy.device_of_rank = {0, 1, 2, 3};
  try {
    validate(strategy, 4, 4, 16);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Strategy, ProductsBeyondAnIntAreRefused) {
  using testing::HasSubstr;
  EXPECT_EQ(refusal(1, 4, 1, 4), "accepted");
  // 2^32 is 0 as an int, and 2 x (2^31 - 1) is -2, which divides 16.
  EXPECT_THAT(refusal(1, 4, 1, 1 << 30), HasSubstr("dp x mbs = 4294967296 does not divide"));
  EXPECT_THAT(refusal(2, 2, 1, 2147483647), HasSubstr("dp x mbs = 4294967294 does not divide"));
  // 65536 x 65536 x 1 is 0 and (2^30 + 1) x 4 is 4 as an int.
  EXPECT_THAT(refusal(1 << 16, 1 << 16, 1, 1), HasSubstr("is not the number of devices"));
  EXPECT_THAT(refusal(4, 1, (1 << 30) + 1, 1), HasSubstr("is not the number of devices"));
}

TEST(Price, TheSlowestDeviceOfAStageSetsItsTime) {
  const DescribedModel model = small_model(4);
  const Cluster cluster = small_cluster(1, 1);
  // PDT: stage 0 on the fast node, stage 1 on the slow one.
  const auto stages = price(model, cluster, small_strategy(2, 2, 1, 1, 4), bare_constants());
  EXPECT_NEAR(stages.stages[1].compute_seconds, 2 * stages.stages[0].compute_seconds, 1e-12);
  // DPT: a fast and a slow replica; both stages have a slow device.
  const auto replicas =
      price(model, cluster, small_strategy(2, 2, 1, 1, 4, "DPT"), bare_constants());
  EXPECT_NEAR(replicas.stages[0].compute_seconds, stages.stages[1].compute_seconds, 1e-12);
  EXPECT_GT(
      replicas.compute_seconds + replicas.bubble_seconds,
      stages.compute_seconds + stages.bubble_seconds - 1e-12);
}

TEST(Price, GradientsShareTheNetworkOfANode) {
  const DescribedModel model = small_model(2);
  const Cluster cluster = small_cluster(2, 0);
  const double bytes = 2e6 * 4; // both layers on one rank, f32
  // One ring of four over both nodes.
  const auto ring = price(model, cluster, small_strategy(1, 4, 1, 1, 2), bare_constants());
  EXPECT_NEAR(ring.gradient_seconds, 2 * 3.0 / 4 * bytes / 1e9, 1e-12);
  // DPT: replicas on different nodes, so both stages' rings share a network.
  const auto shared = price(model, cluster, small_strategy(2, 2, 1, 1, 2, "DPT"), bare_constants());
  EXPECT_NEAR(shared.gradient_seconds, 2 * (bytes / 2) / 1e9, 1e-12);
  // PDT: every ring stays inside a node.
  const auto inside = price(model, cluster, small_strategy(2, 2, 1, 1, 2), bare_constants());
  EXPECT_NEAR(inside.gradient_seconds, (bytes / 2) / 10e9, 1e-12);
}

TEST(Price, TensorParallelLayersAreDividedAndReduced) {
  DescribedModel model = small_model(1, 0, "transformer_layer");
  // Half a millisecond and two all-reduces of 2 kB over 10 GB/s were measured.
  model.measured().layers[0].forward_seconds_per_sample["fast"][2] = 0.5e-3 + 2 * 2e-7;
  const Cluster cluster = small_cluster(1, 0);
  const auto cost = price(model, cluster, small_strategy(1, 1, 2, 1, 1), bare_constants());
  // Forward, recomputation and twofold backward of half the layer.
  EXPECT_NEAR(cost.stages[0].compute_seconds, 4 * 0.5e-3, 1e-12);
  EXPECT_NEAR(cost.stages[0].tensor_seconds, 6 * 2e-7, 1e-15);
}

TEST(Price, AMeasuredUpdateCountsMoreThanTheMemorysBandwidth) {
  DeviceKind kind;
  kind.name = "cpu";
  Constants constants;
  constants.optimizer_traffic_bytes = 100;
  constants.memory_efficiency = 0.5;
  const auto seconds = [&] { return optimizer_seconds(1e6, 0, kind, {}, constants); };
  EXPECT_EQ(seconds(), 0);
  kind.memory_bytes_per_s = 1e9;
  EXPECT_DOUBLE_EQ(seconds(), 0.2);
  kind.update_bytes_per_s = 2e9;
  EXPECT_DOUBLE_EQ(seconds(), 0.05);
}

TEST(Price, HostTimeIsPaidOnceForAMicrobatch) {
  const DescribedModel model = small_model(1, 0, "transformer_layer");
  Cluster cluster = small_cluster(1, 0);
  cluster.kinds[0].launch_seconds = 0.35e-3; // of the 1 ms
  const auto at = [&](int mbs) {
    return price(model, cluster, small_strategy(1, 2, 1, mbs, 1), bare_constants())
        .stages[0]
        .compute_seconds;
  };
  EXPECT_NEAR(at(1), 3 * 0.35e-3 + 4 * 0.65e-3, 1e-12);
  EXPECT_NEAR(at(4) - at(2), 2 * 4 * 0.65e-3, 1e-12);
}

TEST(Price, MeasuredFixedSecondsReplaceTheHostsLaunches) {
  Cluster cluster = small_cluster(1, 0);
  cluster.kinds[0].launch_seconds = 1;
  DescribedModel model = small_model(2);
  model.activation_checkpointing = false;
  for (MeasuredLayer& layer : model.measured().layers) {
    layer.fixed_seconds["fast"] = 4e-4;
  }
  validate(model);
  Strategy strategy = small_strategy(1, 2, 1, 4, 2);
  strategy.activation_checkpointing = false;
  // Twice 0.4 ms, and 0.6 ms of each of four samples three times.
  EXPECT_NEAR(
      price(model, cluster, strategy, bare_constants()).stages[0].compute_seconds,
      2 * (2 * 4e-4 + 4 * 3 * 6e-4),
      1e-9);
  model.measured().layers[0].fixed_seconds["fast"] = 2e-3;
  EXPECT_THROW(validate(model), ConfigError);
}

TEST(Memory, SchedulesKeepDifferentNumbersOfMicrobatches) {
  Strategy strategy = small_strategy(4, 1, 1, 1, 4);
  EXPECT_EQ(in_flight(strategy, 0, 16), 4);
  EXPECT_EQ(in_flight(strategy, 3, 16), 1);
  EXPECT_EQ(in_flight(strategy, 0, 2), 2);
  strategy.active_microbatches = 6;
  EXPECT_EQ(in_flight(strategy, 1, 16), 6);
  strategy.schedule = Schedule::kSimple;
  EXPECT_EQ(in_flight(strategy, 3, 16), 16);
}

TEST(Memory, WithoutAPipelineOneMicrobatchIsHeld) {
  DescribedModel model = small_model(4, 0, "transformer_layer");
  Strategy strategy = small_strategy(1, 2, 1, 1, 4);
  const auto activations = [&] {
    return price(model, small_cluster(1, 0), strategy).stages[0].memory.activations;
  };
  const double of_one = activations();
  strategy.active_microbatches = 3; // as a plan writes it: two more than stages
  EXPECT_EQ(in_flight(strategy, 0, 8), 1);
  EXPECT_GT(of_one, 0);
  EXPECT_EQ(activations(), of_one);
  strategy.schedule = Schedule::kCustom;
  EXPECT_EQ(in_flight(strategy, 0, 8), 8);
}

TEST(Memory, StatesAreCountedAndShardingDividesThem) {
  const DescribedModel model = small_model(2);
  const Cluster cluster = small_cluster(2, 0);
  Strategy strategy = small_strategy(1, 4, 1, 1, 2);
  const auto whole = price(model, cluster, strategy).stages[0].memory;
  EXPECT_EQ(whole.weights, 2e6 * 2);
  EXPECT_EQ(whole.optimizer, 2e6 * 12);
  strategy.shard_optimizer_state = true;
  const auto sharded = price(model, cluster, strategy).stages[0].memory;
  EXPECT_EQ(sharded.optimizer, 2e6 * 3);
  EXPECT_EQ(sharded.weights, whole.weights);
}

TEST(Memory, TiedParametersAreHeldByBothStagesAndExchanged) {
  DescribedModel model = small_model(4);
  model.layers[3].parameters = 0;
  model.layers[3].shares_parameters_with = "layer.0";
  const Cluster cluster = small_cluster(1, 0);
  const auto one = price(model, cluster, small_strategy(1, 2, 1, 1, 4), bare_constants());
  EXPECT_EQ(one.stages[0].parameters, 3e6);
  const auto two = price(model, cluster, small_strategy(2, 1, 1, 1, 4), bare_constants());
  EXPECT_EQ(two.stages[0].parameters, 2e6);
  EXPECT_EQ(two.stages[1].parameters, 2e6);
  EXPECT_NEAR(two.gradient_seconds, 1e6 * 4 / 10e9, 1e-12);
}

TEST(Memory, WhatDoesNotFitIsSaid) {
  DescribedModel model = small_model(2);
  model.layers[1].parameters = 1'000'000'000;
  const Cluster cluster = small_cluster(1, 0);
  const auto cost = price(model, cluster, small_strategy(2, 1, 1, 1, 2));
  EXPECT_FALSE(cost.fits());
  EXPECT_EQ(cost.fullest_stage, 1);
  EXPECT_GT(cost.needed_bytes(), 28e9);
}

TEST(Validate, NamesWhatIsWrong) {
  const DescribedModel model = small_model(4);
  const Cluster cluster = small_cluster(2, 0);
  const auto message = [&](const Strategy& strategy) -> std::string {
    try {
      price(model, cluster, strategy);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(
      message(small_strategy(2, 1, 1, 1, 4)),
      testing::HasSubstr("is not the number of devices, 4"));
  EXPECT_THAT(
      message(small_strategy(1, 4, 1, 3, 4)),
      testing::HasSubstr("does not divide the global batch size 16"));
  Strategy strategy = small_strategy(2, 2, 1, 1, 4);
  strategy.boundaries = {0, 4, 4};
  EXPECT_THAT(message(strategy), testing::HasSubstr("layer_boundaries"));
  EXPECT_THAT(
      message(small_strategy(1, 1, 4, 1, 4)),
      testing::HasSubstr("not measured at tensor-parallel degree 4"));
}

} // namespace
} // namespace tessera::cost
