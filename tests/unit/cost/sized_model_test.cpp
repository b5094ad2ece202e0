#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/cost/data_sheets.h"
#include "tessera/cost/layer_table.h"
#include "tessera/cost/strategy_cost.h"

#include "tests/unit/cost/small_cases.h"

namespace tessera::cost {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kTokens = 8;
constexpr std::int64_t kWidth = 16;

// A device of 1 Tflop/s and 1 TB/s whose host takes no time, so that times follow by hand.
Cluster plain_cluster(int nodes, int devices) {
  Cluster cluster;
  cluster.name = "plain";
  cluster.kinds = {
      {.name = "plain",
       .memory_bytes = 16e9,
       .memory_bytes_per_s = 1e12,
       .product_flops_per_s = 1e12}};
  for (int n = 0; n < nodes; ++n) {
    cluster.nodes.push_back(
        {.kind = 0, .count = devices, .intra_bytes_per_s = 1e9, .inter_bytes_per_s = 1e9});
  }
  return cluster;
}

// Two transformer layers of 12 width^2 parameters, an embedding and a head that share theirs.
DescribedModel sized_model() {
  DescribedModel model;
  model.name = "sized";
  model.global_batch_size = 8;
  const auto layer =
      [](const char* name, const char* kind, std::int64_t parameters, std::int64_t width) {
        return Layer{
            .name = name,
            .kind = kind,
            .parameters = parameters,
            .shares_parameters_with = {},
            .output_elements_per_sample = width * kTokens};
      };
  model.layers = {
      layer("in", "embedding", 32 * kWidth, kWidth),
      layer("a", "transformer_layer", 12 * kWidth * kWidth, kWidth),
      layer("b", "transformer_layer", 12 * kWidth * kWidth, kWidth),
      layer("out", "lm_head", 0, 32)};
  model.layers.back().shares_parameters_with = "in";
  model.source =
      SizedModel{.sequence_length = kTokens, .num_attention_heads = 4, .vocabulary_size = 32};
  return model;
}

Constants plain_constants() {
  Constants constants;
  constants.memory_efficiency = 1;
  constants.link_efficiency = 1;
  constants.link_latency_seconds = 0;
  constants.device_latency_seconds = 0;
  constants.attention_share = 0.5;
  return constants;
}

Strategy strategy_of(int pp, int dp, int tp) {
  Strategy strategy = small_strategy(pp, dp, tp, 1, 4);
  strategy.activation_checkpointing = false;
  return strategy;
}

Strategy one_device() {
  return strategy_of(1, 1, 1);
}

TEST(SizedModel, AForwardIsTheSumOfItsRooflines) {
  const DescribedModel model = sized_model();
  const LayerTable table(model, plain_cluster(1, 1), one_device(), plain_constants());
  const double tokens = kTokens;
  const double elements = tokens * kWidth;
  const double products = 2 * tokens * 12 * kWidth * kWidth / 1e12;
  const double attention = 2 * elements * kTokens / 0.5e12;
  // Norms 4 passes, sums 6, queries, keys and values 6; four widths are fed, 2 passes.
  const double streamed = (16 * 2 * elements + 2 * 2 * 4 * elements) / 1e12;
  EXPECT_NEAR(table.forward_seconds(0, 1, 2), products + attention + streamed, 1e-18);
  const double sums = 12.0 * 12 * kWidth * kWidth / 1e12;
  EXPECT_NEAR(
      table.compute_seconds(0, 1, 2), 3 * products + 3.5 * attention + 3 * streamed + sums, 1e-18);
}

// Of each kind of kernels: bytes of a score in a forward, and in both passes.
void expect_written_scores(AttentionKernels kernels, double in_forward, double in_both) {
  DescribedModel model = sized_model();
  std::get<SizedModel>(model.source).attention = kernels;
  const LayerTable table(model, plain_cluster(1, 1), one_device(), plain_constants());
  const LayerTable fused(sized_model(), plain_cluster(1, 1), one_device(), plain_constants());
  const double tokens = kTokens;
  const double heads = static_cast<double>(model.sized()->num_attention_heads);
  const double products = 4 * tokens * kTokens * kWidth / 1e12;
  const double attention = 2 * tokens * kTokens * kWidth / 0.5e12;
  const double scores = heads * tokens * kTokens;
  const auto forward = [](const LayerTable& one) { return one.forward_seconds(0, 1, 2); };
  const auto both = [](const LayerTable& one) { return one.compute_seconds(0, 1, 2); };
  EXPECT_NEAR(
      forward(table) - forward(fused), products + in_forward * scores / 1e12 - attention, 1e-15);
  EXPECT_NEAR(
      both(table) - both(fused), 3 * products + in_both * scores / 1e12 - 3.5 * attention, 1e-15);
}

TEST(SizedModel, WrittenScoresMoveTheirBytesAndAllPairsAreMultiplied) {
  expect_written_scores(AttentionKernels::kOperators, 21, 48);
  // A forward: 2 of the product, 4 of the softmax, 5 of the dropout with its mask, 2 read by the
  // second product. A backward: 2 written, 5 of the dropout, 6 of the softmax, 6 read.
  expect_written_scores(AttentionKernels::kFusedSoftmax, 2 + 4 + 5 + 2, 13 + 2 + 5 + 6 + 6);
}

TEST(SizedModel, RecomputationAddsAForwardAndKeepsInputsAlone) {
  DescribedModel model = sized_model();
  Strategy strategy = one_device();
  const auto table = [&](bool recomputes) {
    strategy.activation_checkpointing = recomputes;
    return LayerTable(model, plain_cluster(1, 1), strategy, plain_constants());
  };
  EXPECT_NEAR(
      table(true).compute_seconds(0, 1, 2),
      table(false).compute_seconds(0, 1, 2) + table(false).forward_seconds(0, 1, 2),
      1e-18);
  const double elements = kTokens * kWidth;
  EXPECT_EQ(table(true).memory(1, 3, {}).activations, 2 * 2 * elements);
  // Eight tensors of the width and two of the feed-forward network.
  EXPECT_EQ(table(false).memory(1, 3, {}).activations, 2 * 2 * (8 + 2 * 4) * elements);
}

TEST(SizedModel, ASharedHeadMultipliesByTheEmbedding) {
  const DescribedModel model = sized_model();
  Constants constants = plain_constants();
  constants.loss_traffic_bytes = 0;
  constants.accumulation_traffic_bytes = 0;
  const LayerTable table(model, plain_cluster(1, 1), one_device(), constants);
  const double logits = kTokens * 32;
  EXPECT_NEAR(
      table.forward_seconds(0, 3, 4), (2 * kTokens * 32 * kWidth + 2 * logits) / 1e12, 1e-18);
  EXPECT_EQ(table.parameters(0, 4), 32 * kWidth + 2 * 12 * kWidth * kWidth);
}

TEST(SizedModel, SequencesAreGatheredAndScattered) {
  const DescribedModel model = sized_model();
  const StrategyCost cost =
      price(model, plain_cluster(1, 2), strategy_of(1, 1, 2), plain_constants());
  // Of two devices each sends a half: two layers with 2 x 5 collectives, a head with 5.
  const double half = kTokens * kWidth * 2 / 2.0;
  EXPECT_NEAR(cost.stages[0].tensor_seconds, 25 * half / 1e9, 1e-15);
}

TEST(SizedModel, ADeviceWaitsForItsHost) {
  const DescribedModel model = sized_model();
  Cluster cluster = plain_cluster(1, 1);
  cluster.kinds[0].launch_seconds = 1e-3;
  Constants constants = plain_constants();
  constants.transformer_operators = 10;
  const StrategyCost cost = price(model, cluster, one_device(), constants);
  // Forward and backward: nothing for the embedding, 10 and 10 operators, 6 of the head and loss.
  EXPECT_NEAR(cost.stages[0].seconds(), 2 * 26e-3, 1e-12);
  EXPECT_NEAR(
      cost.seconds,
      cost.compute_seconds + cost.tensor_seconds + cost.waiting_seconds + cost.bubble_seconds +
          cost.transfer_seconds + cost.gradient_seconds + cost.optimizer_seconds,
      1e-12);
}

TEST(SizedModel, AHostIsBusyWhilePipelinesSendBetweenNodes) {
  const DescribedModel model = sized_model();
  Cluster cluster = plain_cluster(2, 2);
  cluster.kinds[0].launch_seconds = 1e-3;
  const auto waiting = [&] {
    return price(model, cluster, strategy_of(2, 1, 2), plain_constants()).stages[0].waiting_seconds;
  };
  const double before = waiting();
  cluster.busy_start_seconds = 1e-3;
  EXPECT_NEAR(waiting(), before + 10 * 2 * 1e-3, 1e-12); // one layer starts ten collectives
  cluster.busy_network_start_seconds = 3e-3;
  EXPECT_NEAR(waiting(), before + 10 * 2 * 1e-3, 1e-12); // groups inside their nodes
  // Groups over two nodes start theirs on the network, which takes two milliseconds more.
  cluster.nodes = plain_cluster(4, 1).nodes;
  const double over_network = waiting();
  cluster.busy_network_start_seconds = 0;
  ASSERT_GT(waiting(), 0);
  EXPECT_NEAR(over_network, waiting() + 10 * 2 * 2e-3, 1e-12);
}

TEST(SizedModel, DividedParametersTakeLessMemory) {
  DescribedModel model = sized_model();
  for (Layer& layer : model.layers) {
    layer.parameters *= 1000;
  }
  const Cluster cluster = plain_cluster(1, 4);
  Strategy strategy = strategy_of(1, 4, 1);
  const StageMemory whole = price(model, cluster, strategy).stages[0].memory;
  strategy.shard_optimizer_state = true;
  const StageMemory divided = price(model, cluster, strategy).stages[0].memory;
  EXPECT_EQ(divided.optimizer, whole.optimizer / 4);
  EXPECT_EQ(divided.weights, whole.weights);
  strategy.shard_parameters = true;
  const StageMemory sharded = price(model, cluster, strategy).stages[0].memory;
  // 16-bit values are there only whole: of the layer at work and the next one, and gradients of
  // one, which are f32 while they are summed. Divided are f32 sums, and the optimizer's weights.
  const double largest = 12000.0 * kWidth * kWidth;
  EXPECT_EQ(sharded.weights, 2 * 2 * largest);
  EXPECT_EQ(sharded.gradients, whole.gradients * 4 / 6 / 4 + (2 + 4) * largest);
}

TEST(SizedModel, AnUnknownDeviceIsRefused) {
  Cluster cluster = plain_cluster(1, 1);
  cluster.kinds[0].product_flops_per_s = 0;
  try {
    price(sized_model(), cluster, one_device());
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("product_tflops"));
  }
  cluster.kinds[0].name = "h100";
  EXPECT_GT(price(sized_model(), cluster, one_device()).seconds, 0);
}

TEST(SizedModel, SamplesMayHaveAnotherLength) {
  const DescribedModel longer = with_sequence(sized_model(), 4 * kTokens);
  EXPECT_EQ(longer.sized()->sequence_length, 4 * kTokens);
  EXPECT_EQ(longer.layers[0].output_elements_per_sample, 4 * kTokens * kWidth);
  EXPECT_EQ(longer.layers[1].parameters, sized_model().layers[1].parameters);
}

TEST(Cluster, FirstNodesAreAClusterOfTheirOwn) {
  Cluster cluster = small_cluster(3, 0);
  cluster.links = {{0, 1, 1e8}, {1, 2, 1e8}};
  const Cluster part = cluster.first_nodes(2);
  EXPECT_EQ(part.device_count(), 4);
  EXPECT_EQ(part.links.size(), 1u);
  EXPECT_THROW(cluster.first_nodes(4), ConfigError);
}

TEST(Cluster, JobsOnManyNodesStall) {
  Cluster cluster = small_cluster(4, 0);
  cluster.stalling_share = 0.1;
  cluster.stall_seconds = 1;
  EXPECT_FALSE(cluster.stalls()); // 0.9^4 = 0.66
  const auto seconds = [&](double share) {
    cluster.stalling_share = share;
    return price(small_model(8), cluster, small_strategy(2, 4, 1, 1, 8)).seconds;
  };
  // Four microbatches with two messages each on a stage, and two that fill and drain.
  EXPECT_NEAR(seconds(0.2), seconds(0.1) + 8 + 2, 1e-9);
}

TEST(Cluster, PipelinesOfWideGroupsStall) {
  Cluster cluster = small_cluster(4, 0);
  cluster.stall_seconds = 1;
  DescribedModel model = small_model(8);
  for (auto& layer : model.measured().layers) {
    layer.forward_seconds_per_sample["fast"][4] = 1e-3;
    layer.forward_seconds_per_sample["slow"][4] = 2e-3;
  }
  const auto stalled = [&](const Strategy& strategy, int nodes) {
    cluster.stalling_group_nodes = nodes;
    return price(model, cluster, strategy).stall_seconds;
  };
  const Strategy wide = small_strategy(2, 1, 4, 1, 8); // groups on two nodes
  EXPECT_EQ(stalled(wide, 0), 0);
  EXPECT_EQ(stalled(wide, 3), 0);
  EXPECT_EQ(stalled(wide, 2), 16 * 2 + 2);
  EXPECT_EQ(stalled(small_strategy(2, 2, 2, 1, 8), 2), 0); // groups inside nodes
  EXPECT_EQ(stalled(small_strategy(1, 2, 4, 1, 8), 2), 0); // no messages of a pipeline
}

} // namespace
} // namespace tessera::cost
