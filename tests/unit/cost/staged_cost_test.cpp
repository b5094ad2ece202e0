#include "tessera/cost/staged_cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

#include "tests/unit/cost/small_cases.h"

namespace tessera::cost {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

StrategyCost priced(
    const StagedStrategy& strategy,
    const DescribedModel& model,
    const Cluster& cluster,
    const Constants& constants = {}) {
  validate(
      strategy,
      cluster.device_count(),
      static_cast<int>(model.layers.size()),
      model.global_batch_size);
  StagedTables tables(model, cluster, constants);
  return price(strategy, tables);
}

// Large activations and parameters, so that every part of the price counts.
DescribedModel heavy_model(int layers) {
  auto model = small_model(layers, 0.3, "transformer_layer");
  for (Layer& layer : model.layers) {
    layer.parameters = 30'000'000;
    layer.output_elements_per_sample = 2'000'000;
  }
  return model;
}

TEST(StagedCost, AUniformStrategyHasItsPrice) {
  auto cluster = small_cluster(4, 0);
  auto model = heavy_model(6);
  model.layers[5].shares_parameters_with = "layer.0";
  struct Shape {
    int pp, dp, tp, mbs;
  };
  for (const Shape& shape :
       {Shape{1, 8, 1, 1}, {2, 4, 1, 2}, {2, 2, 2, 1}, {4, 1, 2, 4}, {4, 2, 1, 1}, {1, 4, 2, 4}}) {
    for (const char* letters : {"PDT", "DPT"}) {
      for (const bool sharded : {false, true}) {
        for (Node& node : cluster.nodes) {
          node.cores = sharded ? 1 : 0;
        }
        auto strategy = small_strategy(shape.pp, shape.dp, shape.tp, shape.mbs, 6, letters);
        strategy.shard_optimizer_state = sharded;
        strategy.activation_checkpointing = sharded;
        const auto uniform = price(model, cluster, strategy);
        const auto own = priced(staged(strategy, model.global_batch_size), model, cluster);
        EXPECT_NEAR(own.seconds, uniform.seconds, 1e-12 * uniform.seconds);
        EXPECT_NEAR(own.transfer_seconds, uniform.transfer_seconds, 1e-12);
        EXPECT_NEAR(own.gradient_seconds, uniform.gradient_seconds, 1e-12);
        EXPECT_NEAR(own.needed_bytes(), uniform.needed_bytes(), 1);
        EXPECT_EQ(own.fits(), uniform.fits());
      }
    }
  }
}

// Two layers of 3 ms and 1 ms a sample (a backward takes two forwards): three devices and one.
TEST(StagedCost, AWiderStageForTheLongerLayer) {
  auto model = small_model(2);
  model.global_batch_size = 12;
  model.measured().layers[0].forward_seconds_per_sample = {
      {"fast", {{1, 3e-3}, {2, 3e-3}}}, {"slow", {{1, 6e-3}, {2, 6e-3}}}};
  const auto cluster = small_cluster(2, 0);
  StagedStrategy strategy;
  strategy.microbatches = 4; // of three samples
  strategy.stages = {
      {.last_layer = 1, .recomputes = false, .devices = {0, 1, 2}, .samples = {1, 1, 1}},
      {.first_layer = 1, .last_layer = 2, .recomputes = false, .devices = {3}, .samples = {3}}};
  const auto cost = priced(strategy, model, cluster, bare_constants());
  // Both stages take 9 ms a microbatch.
  EXPECT_NEAR(cost.stages[0].compute_seconds, 9e-3, 1e-12);
  EXPECT_NEAR(cost.stages[1].compute_seconds, 9e-3, 1e-12);
  EXPECT_NEAR(cost.seconds - cost.gradient_seconds - cost.transfer_seconds, 5 * 9e-3, 1e-12);
  // Every uniform strategy of four devices leaves some of them waiting.
  auto uniform = small_strategy(2, 2, 1, 1, 2);
  uniform.activation_checkpointing = false;
  EXPECT_GT(price(model, cluster, uniform, bare_constants()).compute_seconds, 6 * 9e-3 - 1e-12);
}

TEST(StagedCost, ReplicasTakeSamplesByTheirSpeed) {
  auto model = small_model(2);
  model.global_batch_size = 12;
  const auto cluster = small_cluster(1, 1); // two devices that are twice as fast as the others
  StagedStrategy strategy;
  strategy.microbatches = 1;
  strategy.stages = {
      {.last_layer = 2, .recomputes = false, .devices = {0, 1, 2, 3}, .samples = {3, 3, 3, 3}}};
  const double even = priced(strategy, model, cluster, bare_constants()).compute_seconds;
  strategy.stages[0].samples = {4, 4, 2, 2};
  const double by_speed = priced(strategy, model, cluster, bare_constants()).compute_seconds;
  EXPECT_NEAR(even, 3 * 2 * 3 * 2e-3, 1e-12);
  EXPECT_NEAR(by_speed, 4 * 2 * 3 * 1e-3, 1e-12);
}

// 2,000 bytes a sample (1,000 half-precision elements) at 1 GB/s between nodes.
TEST(StagedCost, SlicesTravelBetweenReplicasThatOverlap) {
  const auto model = small_model(2);
  auto cluster = small_cluster(3, 0);
  const NodeLinks links(cluster);
  const Constants constants = bare_constants();
  StagedTables tables(model, cluster, constants);
  const OwnStage wide = {.last_layer = 1, .devices = {0, 1, 2}, .samples = {2, 2, 2}};
  const OwnStage narrow = {.first_layer = 1, .last_layer = 2, .devices = {4, 5}, .samples = {3, 3}};
  // Devices 0 and 1 send four samples over the network of node 0; node 2 receives all six.
  const auto transfer = transfer_between(wide, narrow, links, tables);
  EXPECT_NEAR(transfer.forward, 6 * 2000 / 1e9, 1e-15);
  EXPECT_NEAR(transfer.backward, 6 * 2000 / 1e9, 1e-15);
  EXPECT_TRUE(transfer.between_nodes);
  // With a stage on the same node only the middle replica's second sample has to leave it.
  const OwnStage beside = {.first_layer = 1, .last_layer = 2, .devices = {3, 4}, .samples = {5, 1}};
  const OwnStage one = {.last_layer = 1, .devices = {2, 5}, .samples = {5, 1}};
  EXPECT_NEAR(transfer_between(one, beside, links, tables).forward, 5 * 2000 / 10e9, 1e-15);
  EXPECT_FALSE(transfer_between(one, beside, links, tables).between_nodes);
}

TEST(StagedCost, GradientsAreSummedAmongAStagesOwnReplicas) {
  auto model = heavy_model(2);
  const auto cluster = small_cluster(2, 0);
  StagedStrategy strategy;
  strategy.microbatches = 8;
  strategy.stages = {
      {.last_layer = 1, .devices = {0, 1}, .samples = {1, 1}},
      {.first_layer = 1, .last_layer = 2, .devices = {2}, .samples = {2}}};
  const auto constants = bare_constants();
  const auto cost = priced(strategy, model, cluster, constants);
  // A ring of two sends all bytes once each way; the other stage has one replica and nothing to
  // sum.
  EXPECT_NEAR(cost.gradient_seconds, 30e6 * constants.gradient_wire_bytes / 10e9, 1e-12);
}

TEST(StagedCost, WhatDoesNotFitTogetherIsRefused) {
  const auto refused = [](const auto& change, const char* text) {
    StagedStrategy strategy = staged(small_strategy(2, 2, 1, 1, 4), 16);
    change(strategy);
    EXPECT_THAT([&] { validate(strategy, 4, 4, 16); }, ThrowsMessage<ConfigError>(HasSubstr(text)));
  };
  validate(staged(small_strategy(2, 2, 1, 1, 4), 16), 4, 4, 16);
  refused([](auto& s) { s.stages[1].first_layer = 3; }, "stage 1: found layers 3 to 4");
  refused([](auto& s) { s.stages[1].devices[0] = 0; }, "device 0 is not there, or another stage");
  refused([](auto& s) { s.stages[1].devices[0] = 4; }, "device 4 is not there");
  refused([](auto& s) { s.stages[0].samples[0] = 2; }, "have 3 samples of a microbatch of 2");
  refused([](auto& s) { s.stages[0].samples = {2, 0}; }, "a replica of 0 samples");
  refused([](auto& s) { s.stages[0].devices.pop_back(); }, "1 devices for 2 replicas");
  refused([](auto& s) { s.stages.pop_back(); }, "2 of 4 layers");
  refused([](auto& s) { s.microbatches = 3; }, "3 microbatches do not divide");
}

} // namespace
} // namespace tessera::cost
