// What a run of layers holds on a device, by hand: activations and attention scores of measured
// layers, logits, and what offloading leaves on the device.
#include <gtest/gtest.h>

#include "tessera/cost/layer_table.h"

#include "tests/unit/cost/small_cases.h"

namespace tessera::cost {
namespace {

// Layers of 12 h^2 parameters, h = 100, whose samples have 50 positions: 5,000 outputs.
DescribedModel layers_of(int count, const std::string& kind = "transformer_layer") {
  DescribedModel model = small_model(count, 0, kind);
  for (Layer& layer : model.layers) {
    layer.parameters = 120'000;
    layer.output_elements_per_sample = 5000;
  }
  return model;
}

// Microbatches of three samples.
Strategy three_samples(int tp, bool recomputes) {
  Strategy strategy = small_strategy(1, 1, tp, 3, 1);
  strategy.activation_checkpointing = recomputes;
  return strategy;
}

StageMemory memory_of(
    const DescribedModel& model,
    const Strategy& strategy,
    const StageState& state = {},
    const Cluster& cluster = small_cluster(1, 0)) {
  const LayerTable table(model, cluster, strategy, Constants{});
  return table.memory(0, table.layers(), state);
}

constexpr double kElements = 3 * 5000; // of a microbatch

TEST(MeasuredMemory, OfALayerIsWhatItsRecomputationNeeds) {
  DescribedModel model = layers_of(1);
  model.measured().sequence_length = 50;
  model.measured().num_attention_heads = 4;
  const double scores = 5.0 * 3 * 4 * 50 * 50; // five bytes each
  for (const int tp : {1, 2}) {
    const StageMemory held = memory_of(model, three_samples(tp, true));
    EXPECT_DOUBLE_EQ(held.working, kElements * (120 + 24.0 / tp) + scores / tp) << tp;
    // The activation and the buffer in which it came, of two bytes.
    EXPECT_DOUBLE_EQ(held.activations, 2 * kElements * 2) << tp;
    EXPECT_EQ(held.logits, 0);
    // Korthikanti et al. 2022, section 4.1.
    const StageMemory kept = memory_of(model, three_samples(tp, false));
    EXPECT_DOUBLE_EQ(
        kept.activations, 2 * kElements * 2 + kElements * (10 + 24.0 / tp) + scores / tp);
    EXPECT_DOUBLE_EQ(kept.working, held.working);
  }
  // One head is not divided.
  model.measured().num_attention_heads = 1;
  EXPECT_DOUBLE_EQ(
      memory_of(model, three_samples(2, true)).working, kElements * (120 + 12) + scores / 4);
  // In single precision an activation has four bytes.
  model.precision = Precision::kFull;
  const StageMemory full = memory_of(model, three_samples(1, false));
  EXPECT_DOUBLE_EQ(full.activations, 2 * kElements * 4 + kElements * 34 * 2 + scores / 4);
  EXPECT_DOUBLE_EQ(full.optimizer, 120'000 * 8.0); // no masters
}

TEST(MeasuredMemory, ScoresAreGuessedFromParametersAndBoundedByTheMeasuredTime) {
  DescribedModel model = layers_of(1);
  const auto scores = [&](const Cluster& cluster) {
    const double working = memory_of(model, three_samples(1, true), {}, cluster).working;
    return (working - kElements * 144) / 5 / 3;
  };
  Cluster cluster = small_cluster(1, 0);
  EXPECT_NEAR(scores(cluster), 50 * 50, 1e-6);
  // Ten megabytes a second write ten kilobytes in the measured millisecond: 2,000 scores.
  cluster.kinds[0].memory_bytes_per_s = 1e7;
  EXPECT_NEAR(scores(cluster), 2000, 1e-6);
  cluster.kinds[0].memory_bytes_per_s = 0; // not known
  EXPECT_NEAR(scores(cluster), 2500, 1e-6);
  // Of one of the two numbers nothing follows.
  model.measured().sequence_length = 10;
  EXPECT_NEAR(scores(cluster), 2500, 1e-6);
  model.measured().sequence_length = 0;
  model.measured().num_attention_heads = 4;
  EXPECT_NEAR(scores(cluster), 2500, 1e-6);
  model.layers[0].parameters = 0;
  EXPECT_NEAR(scores(cluster), 0, 1e-6);
}

TEST(MeasuredMemory, LogitsAreCountedOnceAndNotKept) {
  const StageMemory head = memory_of(layers_of(1, "lm_head"), three_samples(2, true));
  EXPECT_DOUBLE_EQ(head.logits, 14 * kElements / 2);
  EXPECT_EQ(head.activations, 0);
  EXPECT_EQ(head.working, 0);
  // A layer of another kind that returns a number for every word and position makes logits too.
  DescribedModel model = layers_of(1, "other");
  model.measured().sequence_length = 50;
  EXPECT_GT(memory_of(model, three_samples(1, true)).activations, 0);
  model.measured().vocabulary_size = 100;
  EXPECT_EQ(memory_of(model, three_samples(1, true)).activations, 0);
  model.measured().vocabulary_size = 99;
  EXPECT_DOUBLE_EQ(memory_of(model, three_samples(1, true)).activations, 4 * kElements);
}

TEST(StageMemory, HoldsTheLargestOfItsLayersAtWork) {
  DescribedModel model = layers_of(3);
  model.layers[1].output_elements_per_sample = 50'000;
  const LayerTable table(model, small_cluster(1, 0), three_samples(1, true), Constants{});
  const auto working = [&](int first, int last) { return table.memory(first, last, {}).working; };
  EXPECT_GT(working(1, 2), working(0, 1));
  EXPECT_EQ(working(0, 3), working(1, 2));
  EXPECT_EQ(working(0, 2), working(1, 2));
  EXPECT_EQ(working(2, 3), working(0, 1));
  EXPECT_EQ(table.memory(0, 3, {.in_flight = 4}).activations, 4 * 4.0 * 3 * (2 * 5000 + 50'000));
}

// Ten layers of 4 x 15,000 bytes a microbatch.
class Offloaded : public testing::Test {
 protected:
  static constexpr double kOfLayer = 4 * kElements;

  StageMemory memory(const std::string& kind, bool recomputes, const StageState& state) {
    Cluster cluster = small_cluster(1, 0);
    for (DeviceKind& device : cluster.kinds) {
      device.host_bytes_per_s = 1e10;
    }
    Strategy strategy = three_samples(1, recomputes);
    strategy.offload_activations = true;
    return memory_of(layers_of(10, kind), strategy, state, cluster);
  }
};

TEST_F(Offloaded, WholeForwardsLeaveTwoMicrobatchesOnTheDevice) {
  for (const int in_flight : {1, 2, 5}) {
    const StageMemory memory =
        this->memory("other", false, {.in_flight = in_flight, .offloads_activations = true});
    EXPECT_DOUBLE_EQ(memory.host, 10 * kOfLayer * in_flight);
    EXPECT_DOUBLE_EQ(memory.activations, 10 * kOfLayer * std::min(in_flight, 2));
  }
}

TEST_F(Offloaded, RecomputedLayersBeginToReturnTwoMicrobatchesEarly) {
  for (const int in_flight : {1, 3, 8}) {
    const StageMemory memory = this->memory(
        "transformer_layer", true, {.in_flight = in_flight, .offloads_activations = true});
    EXPECT_DOUBLE_EQ(memory.host, 10 * kOfLayer * in_flight);
    EXPECT_DOUBLE_EQ(memory.activations, 10 * kOfLayer * std::min(in_flight, 3));
  }
  // Layers that are not recomputed keep what they keep.
  const StageMemory memory =
      this->memory("other", true, {.in_flight = 3, .offloads_activations = true});
  EXPECT_EQ(memory.host, 0);
  EXPECT_DOUBLE_EQ(memory.activations, 10 * kOfLayer * 3);
}

TEST_F(Offloaded, OneStageHasSixLayersOnTheDevice) {
  const StageMemory memory = this->memory(
      "transformer_layer", true, {.in_flight = 2, .offloads_activations = true, .by_layer = true});
  EXPECT_DOUBLE_EQ(memory.host, 10 * kOfLayer * 2);
  EXPECT_DOUBLE_EQ(memory.activations, 6 * kOfLayer);
}

TEST(StageMemory, AnOffloadedStateHasTwoLayersOnTheDevice) {
  DescribedModel model = layers_of(5);
  model.layers[3].parameters = 200'000;
  const Strategy strategy = three_samples(1, true);
  const double state = 12 * (4 * 120'000.0 + 200'000);
  const StageMemory memory =
      memory_of(model, strategy, {.optimizer_shards = 2, .offloads_optimizer = true});
  EXPECT_DOUBLE_EQ(memory.host, state / 2);
  EXPECT_DOUBLE_EQ(memory.optimizer, 2 * 12 * 200'000.0 / 2);
  // Of one layer there is no more than its state.
  EXPECT_DOUBLE_EQ(
      memory_of(layers_of(1), strategy, {.offloads_optimizer = true}).optimizer, 12 * 120'000.0);
  model.optimizer_state_bytes = 4;
  EXPECT_DOUBLE_EQ(memory_of(model, strategy).optimizer, state / 3);
}

TEST(Offloading, MakesALayerAsLongAsItsTransfer) {
  // 60,000 bytes at 10 MB/s take 6 ms; the layer 3 ms forward and 6 ms backward for three samples.
  Cluster cluster = small_cluster(1, 0);
  for (DeviceKind& device : cluster.kinds) {
    device.host_bytes_per_s = 1e7;
  }
  Strategy strategy = three_samples(1, false);
  strategy.offload_activations = true;
  const auto seconds = [&](double bytes_per_s) {
    cluster.kinds[0].host_bytes_per_s = bytes_per_s;
    const LayerTable table(layers_of(1, "other"), cluster, strategy, Constants{});
    return std::pair(table.forward_seconds(0, 0, 1), table.compute_seconds(0, 0, 1));
  };
  const auto near = [&](double bytes_per_s, double forward, double both) {
    EXPECT_NEAR(seconds(bytes_per_s).first, forward, 1e-12);
    EXPECT_NEAR(seconds(bytes_per_s).second, both, 1e-12);
  };
  near(1e9, 3e-3, 9e-3);
  near(1.5e7, 4e-3, 4e-3 + 6e-3);
  near(0.75e7, 8e-3, 8e-3 + 8e-3);
}

} // namespace
} // namespace tessera::cost
