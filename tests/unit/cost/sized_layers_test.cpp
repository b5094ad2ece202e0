// Layers of a model of sizes, one by one and by hand: their seconds, their memory, and what their
// hosts start.
#include <gtest/gtest.h>

#include "tessera/cost/layer_table.h"
#include "tessera/cost/staged_cost.h"
#include "tessera/cost/strategy_cost.h"

#include "tests/unit/cost/small_cases.h"

namespace tessera::cost {
namespace {

constexpr std::int64_t kPositions = 8;
constexpr std::int64_t kWide = 16;
constexpr std::int64_t kWords = 32;
constexpr double kTokens = 2.0 * kPositions; // of a microbatch of two samples
constexpr double kElements = kTokens * kWide;
constexpr double kLogits = kTokens * kWords;

// A device of 1 Tflop/s and 1 GB/s whose host starts an operator in a microsecond.
constexpr double kFlops = 1e12;
constexpr double kBytes = 1e9;
constexpr double kLaunch = 1e-6;

Cluster plain_cluster(int nodes = 1, int devices = 4) {
  Cluster cluster = small_cluster(nodes, 0);
  cluster.kinds = {
      {.name = "plain",
       .memory_bytes = 16e9,
       .memory_bytes_per_s = kBytes,
       .launch_seconds = kLaunch,
       .product_flops_per_s = kFlops}};
  for (Node& node : cluster.nodes) {
    node.count = devices;
  }
  return cluster;
}

Constants plain_constants() {
  Constants constants;
  constants.memory_efficiency = 1;
  constants.attention_share = 0.5;
  constants.transformer_operators = 10;
  return constants;
}

DescribedModel model_of(const std::vector<Layer>& layers) {
  DescribedModel model;
  model.name = "sized";
  model.global_batch_size = 16;
  model.layers = layers;
  model.source = SizedModel{
      .sequence_length = kPositions, .num_attention_heads = 4, .vocabulary_size = kWords};
  return model;
}

Layer layer_of(const std::string& kind, std::int64_t parameters, std::int64_t width = kWide) {
  return {
      .name = kind,
      .kind = kind,
      .parameters = parameters,
      .shares_parameters_with = {},
      .output_elements_per_sample = width * kPositions};
}

Strategy ranks(int tp, Distribution distribution = Distribution::kAsMeasured) {
  Strategy strategy;
  strategy.tp = tp;
  strategy.microbatch_size = 2;
  strategy.distribution = distribution;
  strategy.activation_checkpointing = false;
  return strategy;
}

LayerTable table_of(const DescribedModel& model, const Strategy& strategy) {
  return {model, plain_cluster(), strategy, plain_constants()};
}

TEST(SizedLayers, AnEmbeddingReadsAndWritesItsOutput) {
  const DescribedModel model = model_of({layer_of("embedding", 1000), layer_of("reshape", 0)});
  for (const int tp : {1, 2}) {
    const LayerTable table = table_of(model, ranks(tp));
    const double streamed = 2 * 2 * kElements / tp / kBytes;
    EXPECT_NEAR(table.forward_seconds(0, 0, 1), streamed, 1e-18);
    // A backward streams twice as much, and adds gradients: twelve bytes each.
    EXPECT_NEAR(table.compute_seconds(0, 0, 1), 3 * streamed + 1000 * 12.0 / tp / kBytes, 1e-15);
    EXPECT_EQ(table.compute_seconds(0, 1, 2), 0); // it passes on what it gets
    EXPECT_EQ(table.tensors(0, 1), 1);
    EXPECT_EQ(table.tensors(1, 2), 0);
    EXPECT_EQ(table.host_seconds(0, 0, 2), 0);
    EXPECT_DOUBLE_EQ(table.cut_bytes(1), 2 * kElements / tp);
  }
}

TEST(SizedLayers, AHeadHoldsTheLossWhereNoLayerDoes) {
  const DescribedModel model =
      model_of({layer_of("reshape", 0), layer_of("lm_head", kWide * kWords, kWords)});
  for (const int tp : {1, 2}) {
    const LayerTable table = table_of(model, ranks(tp));
    const double products = 2 * kTokens * kWide * kWords / tp / kFlops;
    const double streamed = (2 + 56.0 / 3) * kLogits / tp / kBytes;
    EXPECT_NEAR(table.forward_seconds(0, 1, 2), products + streamed, 1e-15);
    EXPECT_NEAR(
        table.compute_seconds(0, 1, 2),
        3 * (products + streamed) + 12.0 * kWide * kWords / tp / kBytes,
        1e-14);
    const StageMemory memory = table.memory(1, 2, {});
    EXPECT_DOUBLE_EQ(memory.logits, 14 * kLogits / tp);
    EXPECT_DOUBLE_EQ(memory.activations, 2 * kElements); // its input, gathered
    EXPECT_EQ(table.cut_bytes(2), 0);
    EXPECT_EQ(table.tensors(1, 2), 1);
    // A product and five operators of the loss; divided, a gather and a scatter too.
    EXPECT_NEAR(table.host_seconds(0, 1, 2), 2 * (6 + (tp == 1 ? 0 : 2)) * kLaunch, 1e-15);
    EXPECT_EQ(table.collectives(1, 2), tp == 1 ? 0 : 2 + 3);
  }
  // A first layer has no input of which anything is known.
  EXPECT_EQ(
      table_of(model_of({layer_of("lm_head", 0, kWords)}), ranks(1)).memory(0, 1, {}).activations,
      0);
}

TEST(SizedLayers, ALossOfItsOwnTakesItsCopiesAlong) {
  const DescribedModel model =
      model_of({layer_of("reshape", 0), layer_of("lm_head", 0, kWords), layer_of("loss", 0)});
  const LayerTable table = table_of(model, ranks(2));
  EXPECT_DOUBLE_EQ(table.memory(1, 2, {}).logits, 2 * kLogits / 2);
  EXPECT_DOUBLE_EQ(table.memory(2, 3, {}).logits, 12 * kLogits / 2);
  EXPECT_NEAR(table.forward_seconds(0, 2, 3), 56.0 / 3 * kLogits / 2 / kBytes, 1e-15);
  EXPECT_NEAR(table.host_seconds(0, 2, 3), 2 * 5 * kLaunch, 1e-15);
  EXPECT_NEAR(table.host_seconds(0, 1, 2), 2 * 3 * kLaunch, 1e-15); // one, gather and scatter
  EXPECT_DOUBLE_EQ(table.cut_bytes(2), 2 * kLogits / 2);
  EXPECT_EQ(table.cut_bytes(3), 0);
}

TEST(SizedLayers, AFusedLossIsOneKernelOverTheLogits) {
  const DescribedModel model =
      model_of({layer_of("reshape", 0), layer_of("lm_head", 0, kWords), layer_of("fused_loss", 0)});
  const LayerTable table = table_of(model, ranks(2));
  EXPECT_DOUBLE_EQ(table.memory(1, 3, {}).logits, (2 + 2) * kLogits / 2);
  EXPECT_NEAR(table.forward_seconds(0, 2, 3), 2 * kLogits / 2 / kBytes, 1e-18);
  EXPECT_NEAR(table.compute_seconds(0, 2, 3), 3 * 2 * kLogits / 2 / kBytes, 1e-15);
  EXPECT_NEAR(table.host_seconds(0, 2, 3), 2 * kLaunch, 1e-15);
}

TEST(SizedLayers, AMetricReadsTheLogitsInAForwardAlone) {
  const DescribedModel model = model_of(
      {layer_of("reshape", 0),
       layer_of("lm_head", 0, kWords),
       layer_of("fused_loss", 0),
       layer_of("metric", 0)});
  const LayerTable table = table_of(model, ranks(2));
  EXPECT_NEAR(table.forward_seconds(0, 3, 4), 22 * kLogits / 2 / kBytes, 1e-18);
  EXPECT_NEAR(table.compute_seconds(0, 3, 4), 22 * kLogits / 2 / kBytes, 1e-15);
  EXPECT_EQ(table.memory(3, 4, {}).logits, 0);
}

TEST(SizedLayers, AttentionTakesTheRateThatTheDeviceSays) {
  const DescribedModel model = model_of({layer_of("transformer_layer", 12 * kWide * kWide)});
  Cluster cluster = plain_cluster();
  cluster.kinds[0].attention_flops_per_s = 1e30;
  const auto forward = [&] {
    return LayerTable(model, cluster, ranks(1), plain_constants()).forward_seconds(0, 0, 1);
  };
  const double products = forward();
  cluster.kinds[0].attention_flops_per_s = kFlops / 7;
  const double slow = forward();
  cluster.kinds[0].attention_flops_per_s = kFlops * plain_constants().attention_share;
  const double said = forward();
  cluster.kinds[0].attention_flops_per_s = 0;
  EXPECT_DOUBLE_EQ(forward(), said);
  EXPECT_NEAR((slow - products) / (said - products), 7 * plain_constants().attention_share, 1e-9);
}

// Two heads of keys and values for four of queries, and a gated feed-forward network of 20: the
// attention has (2 + 2 / 2) 16^2 parameters, the network three matrices of 16 x 20.
constexpr double kFed = kTokens * 20;
constexpr std::int64_t kGatedParameters = 3 * kWide * kWide + 3 * kWide * 20;

DescribedModel gated_model() {
  DescribedModel model = model_of({layer_of("transformer_layer", kGatedParameters)});
  auto& sizes = std::get<SizedModel>(model.source);
  sizes.num_key_value_heads = 2;
  sizes.gated_feed_forward = true;
  return model;
}

struct Expected {
  double products = 0;
  double attention = 0;
  double streamed = 0;
  double sums = 0;
  double kept = 0;

  double forward() const {
    return products + attention + streamed;
  }
  double both() const {
    return 3 * products + 3.5 * attention + 3 * streamed + sums;
  }
};

// `whole` ranks hold each activation outside of the blocks together.
Expected gated(int tp, int whole) {
  Expected one;
  one.products = 2 * kTokens * kGatedParameters / tp / kFlops;
  one.attention = 2 * kElements * kPositions / tp / (0.5 * kFlops);
  // Ten passes of norms and sums; queries, keys and values of two widths, read and written; five
  // of what is fed.
  one.streamed = 2 * (10 * kElements / whole + 2 * 2 * kElements / tp + 5 * kFed / tp) / kBytes;
  one.sums = 12.0 * kGatedParameters / tp / kBytes;
  // Inputs of two norms and two blocks; two widths and what attention returns; four of what is fed.
  one.kept = 2 * (4 * kElements / whole + 3 * kElements / tp + 4 * kFed / tp);
  return one;
}

TEST(SizedLayers, ATransformerLayerWithFewerKeysAndAGate) {
  for (const auto& [tp, distribution] :
       {std::pair(1, Distribution::kAsMeasured),
        {2, Distribution::kAsMeasured},
        {2, Distribution::kSpeed},
        {4, Distribution::kMesh}}) {
    const Expected expected = gated(tp, distribution == Distribution::kSpeed ? 1 : tp);
    Strategy strategy = ranks(tp, distribution);
    const LayerTable table = table_of(gated_model(), strategy);
    EXPECT_NEAR(table.forward_seconds(0, 0, 1), expected.forward(), 1e-14) << tp;
    EXPECT_NEAR(table.compute_seconds(0, 0, 1), expected.both(), 1e-14) << tp;
    EXPECT_NEAR(table.memory(0, 1, {}).activations, expected.kept, 1e-9) << tp;
    // A block whose sequence is divided works with four whole tensors of its size.
    const double whole =
        tp > 1 && distribution == Distribution::kAsMeasured ? 4 * 2 * kElements : 0;
    EXPECT_NEAR(table.memory(0, 1, {}).working, 2 * 2 * kFed / tp + whole, 1e-9);
    EXPECT_EQ(table.tensors(0, 1), 7);
    strategy.activation_checkpointing = true;
    const LayerTable recomputed = table_of(gated_model(), strategy);
    EXPECT_NEAR(recomputed.compute_seconds(0, 0, 1), expected.both() + expected.forward(), 1e-14);
    EXPECT_NEAR(recomputed.memory(0, 1, {}).activations, 2 * kElements / tp, 1e-9);
    EXPECT_NEAR(recomputed.memory(0, 1, {}).working, expected.kept + whole, 1e-9);
    strategy.keeps_products = true;
    const LayerTable selective = table_of(gated_model(), strategy);
    EXPECT_NEAR(
        selective.compute_seconds(0, 0, 1),
        expected.both() + expected.forward() - expected.products,
        1e-14);
    // Three widths and both inputs of the gate.
    EXPECT_NEAR(
        selective.memory(0, 1, {}).activations,
        2 * (kElements + 3 * kElements + 2 * kFed) / tp,
        1e-9);
  }
}

// The last product of three, the sum behind it and the exchange between them are not run again;
// where products are kept it is left out already.
TEST(SizedLayers, ARecomputationMayStopEarly) {
  for (const auto& [tp, distribution] :
       {std::pair(1, Distribution::kAsMeasured),
        {2, Distribution::kAsMeasured},
        {2, Distribution::kSpeed},
        {4, Distribution::kMesh}}) {
    DescribedModel model = gated_model();
    Strategy strategy = ranks(tp, distribution);
    strategy.activation_checkpointing = true;
    const LayerTable whole = table_of(model, strategy);
    std::get<SizedModel>(model.source).recomputation_stops_early = true;
    const LayerTable early = table_of(model, strategy);
    const int sums_on = distribution == Distribution::kSpeed ? 1 : tp;
    EXPECT_NEAR(
        whole.compute_seconds(0, 0, 1) - early.compute_seconds(0, 0, 1),
        2 * kFed * kWide / tp / kFlops + 3 * 2 * kElements / sums_on / kBytes,
        1e-14)
        << tp;
    EXPECT_EQ(early.forward_seconds(0, 0, 1), whole.forward_seconds(0, 0, 1));
    const int exchanges = tp == 2 ? 1 : 0; // the panels of a mesh are those of all its products
    EXPECT_EQ(whole.collectives(0, 1) - early.collectives(0, 1), exchanges) << tp;
    EXPECT_EQ(early.memory(0, 1, {}).total(), whole.memory(0, 1, {}).total());
    strategy.keeps_products = true;
    EXPECT_EQ(
        table_of(model, strategy).compute_seconds(0, 0, 1),
        table_of(gated_model(), strategy).compute_seconds(0, 0, 1));
    strategy.activation_checkpointing = false;
    strategy.keeps_products = false;
    EXPECT_EQ(
        table_of(model, strategy).compute_seconds(0, 0, 1),
        table_of(gated_model(), strategy).compute_seconds(0, 0, 1));
  }
}

TEST(SizedLayers, WithoutAGateTheNetworkHasTwoMatrices) {
  const std::int64_t parameters = 4 * kWide * kWide + 2 * kWide * 20;
  const DescribedModel model = model_of({layer_of("transformer_layer", parameters)});
  const LayerTable table = table_of(model, ranks(1));
  const double products = 2 * kTokens * static_cast<double>(parameters) / kFlops;
  const double attention = 2 * kElements * kPositions / (0.5 * kFlops);
  const double streamed = 2 * (10 * kElements + 2 * 3 * kElements + 2 * kFed) / kBytes;
  EXPECT_NEAR(table.forward_seconds(0, 0, 1), products + attention + streamed, 1e-14);
  EXPECT_NEAR(table.memory(0, 1, {}).activations, 2 * (4 + 3 + 1) * kElements + 2 * 2 * kFed, 1e-9);
  EXPECT_EQ(table.tensors(0, 1), 6);
  Strategy strategy = ranks(1);
  strategy.activation_checkpointing = strategy.keeps_products = true;
  EXPECT_NEAR(
      table_of(model, strategy).memory(0, 1, {}).activations,
      2 * ((1 + 4) * kElements + kFed),
      1e-9);
  // A layer with less than its attention feeds nothing.
  EXPECT_NEAR(
      table_of(model_of({layer_of("transformer_layer", kWide)}), ranks(1))
          .memory(0, 1, {})
          .activations,
      2 * 8 * kElements,
      1e-9);
}

TEST(SizedLayers, WrittenScoresAreKeptOrMadeAgain) {
  DescribedModel model = gated_model();
  std::get<SizedModel>(model.source).attention = AttentionKernels::kOperators;
  const double scores = 5 * kTokens * kPositions * 4; // of four heads
  for (const int tp : {1, 2}) {
    const double kept = gated(tp, tp).kept;
    EXPECT_NEAR(table_of(model, ranks(tp)).memory(0, 1, {}).activations, kept + scores / tp, 1e-9);
    Strategy strategy = ranks(tp);
    strategy.activation_checkpointing = true;
    const StageMemory memory = table_of(model, strategy).memory(0, 1, {});
    EXPECT_NEAR(memory.working, kept + scores / tp + (tp > 1 ? 4 * 2 * kElements : 0), 1e-9);
    EXPECT_NEAR(memory.activations, 2 * kElements / tp, 1e-9);
  }
}

TEST(SizedLayers, HostsStartOperatorsAndCollectives) {
  struct Case {
    int tp;
    Distribution distribution;
    bool recomputes;
    double forward; // collectives
    double backward;
  };
  for (const Case& one : {
           Case{1, Distribution::kAsMeasured, false, 0, 0},
           {1, Distribution::kAsMeasured, true, 0, 0},
           // Two blocks, each with a gather and a scatter; a backward gathers once more.
           {2, Distribution::kAsMeasured, false, 4, 6},
           {2, Distribution::kAsMeasured, true, 4, 10},
           // An all-reduce for each block; a checkpoint is gathered.
           {2, Distribution::kSpeed, false, 2, 2},
           {2, Distribution::kSpeed, true, 2, 5},
           // Four products of two panels along rows and columns of 2 x 2.
           {4, Distribution::kMesh, false, 16, 32},
           {4, Distribution::kMesh, true, 16, 48},
           // 1 x 2 has as many panels as its longer side.
           {2, Distribution::kMesh, false, 16, 32},
       }) {
    Strategy strategy = ranks(one.tp, one.distribution);
    strategy.activation_checkpointing = one.recomputes;
    const LayerTable table = table_of(gated_model(), strategy);
    EXPECT_EQ(table.collectives(0, 1), one.forward + one.backward) << one.tp;
    EXPECT_NEAR(
        table.host_seconds(0, 0, 1), (10 + one.forward) * (one.recomputes ? 3 : 2) * kLaunch, 1e-15)
        << one.tp;
  }
}

TEST(SizedLayers, GatheredActivationsStayUntilTheDeviceHasUsedThem) {
  Strategy strategy = ranks(2);
  const double gathered = 2 * 2 * kElements;
  const auto more = [&](StageState state) {
    const StageMemory memory = table_of(gated_model(), strategy).memory(0, 1, state);
    return memory.activations - gated(2, 2).kept * state.in_flight;
  };
  EXPECT_NEAR(more({.in_flight = 5}), 3 * gathered, 1e-9); // but for the two at work
  EXPECT_NEAR(more({.in_flight = 2}), 0, 1e-9);
  EXPECT_NEAR(more({.in_flight = 1}), 0, 1e-9);
  EXPECT_NEAR(more({.in_flight = 5, .host = HostPace::kAhead}), 5 * gathered, 1e-9);
}

TEST(SizedLayers, AHostIsAheadWhereItsDeviceDoesNotWait) {
  DescribedModel model = gated_model();
  model.layers.push_back(model.layers.front());
  model.layers.back().name = "another";
  Strategy strategy = small_strategy(2, 1, 2, 2, 2);
  strategy.activation_checkpointing = false;
  strategy.active_microbatches = 5;
  Cluster cluster = plain_cluster(1, 4);
  const auto activations = [&](double launch) {
    cluster.kinds[0].launch_seconds = launch;
    return price(model, cluster, strategy, plain_constants()).stages[0].memory.activations;
  };
  const double kept = 5 * gated(2, 2).kept;
  const double gathered = 2 * 2 * kElements;
  EXPECT_NEAR(activations(0), kept + 5 * gathered, 1e-9);
  EXPECT_NEAR(activations(1), kept + 3 * gathered, 1e-9);
  cluster.stalling_share = 0.9; // a network that stalls holds up the host
  EXPECT_NEAR(activations(0), kept, 1e-9);
}

TEST(SizedLayers, AHeadOfAMeshKeepsItsPart) {
  const DescribedModel model =
      model_of({layer_of("reshape", 0), layer_of("lm_head", kWide * kWords, kWords)});
  const LayerTable table = table_of(model, ranks(4, Distribution::kMesh));
  EXPECT_DOUBLE_EQ(table.memory(1, 2, {}).activations, 2 * kElements / 4);
  // One product: two panels along rows, two along columns, and twice as many in the backward.
  EXPECT_EQ(table.collectives(1, 2), 3 * 4);
  // Rows carry half of the logits, columns half of the weights, forward and twice backward.
  StageLinks rows;
  rows.tensor_nodes = {{1, {}}};
  rows.tensor_bytes_per_s = 1;
  StageLinks columns = rows;
  rows.rows.seconds_per_byte = 1;
  columns.columns.seconds_per_byte = 1;
  EXPECT_DOUBLE_EQ(table.tensor_seconds(1, 2, rows).forward, 2 * kLogits / 2);
  EXPECT_DOUBLE_EQ(table.tensor_seconds(1, 2, columns).forward, 2.0 * kWide * kWords / 2);
  EXPECT_DOUBLE_EQ(table.tensor_seconds(1, 2, columns).backward, 2 * 2.0 * kWide * kWords / 2);
}

// As for measured models: a strategy whose stages are alike has one price in both forms.
TEST(SizedLayers, AUniformStrategyHasItsPriceInStages) {
  const DescribedModel model = model_of(
      {layer_of("embedding", 1'000'000),
       layer_of("transformer_layer", 50'000),
       [] {
         Layer layer = layer_of("transformer_layer", 3'000'000);
         layer.name = "second";
         return layer;
       }(),
       layer_of("lm_head", 2'000'000, kWords)});
  Cluster cluster = plain_cluster(2, 4);
  cluster.busy_start_seconds = 1e-4;
  Constants constants = plain_constants();
  constants.gradient_bucket_bytes = 1e5;
  for (const bool stalls : {false, true}) {
    cluster.stalling_share = stalls ? 0.9 : 0;
    cluster.stall_seconds = 1e-3;
    for (const auto& [pp, dp, tp] :
         {std::tuple(2, 4, 1), {2, 2, 2}, {4, 2, 1}, {1, 4, 2}, {1, 8, 1}, {4, 1, 2}}) {
      for (const char* letters : {"PDT", "DPT"}) {
        for (const bool shards : {false, true}) {
          Strategy strategy = small_strategy(pp, dp, tp, 2, 4, letters);
          strategy.shard_optimizer_state = shards;
          strategy.activation_checkpointing = shards;
          const StrategyCost uniform = price(model, cluster, strategy, constants);
          StagedTables tables(model, cluster, constants);
          const StrategyCost own = price(staged(strategy, model.global_batch_size), tables);
          EXPECT_NEAR(own.seconds / uniform.seconds, 1, 1e-12) << pp << dp << tp << letters;
          EXPECT_NEAR(own.gradient_seconds, uniform.gradient_seconds, 1e-12);
          EXPECT_NEAR(own.waiting_seconds, uniform.waiting_seconds, 1e-12);
          EXPECT_NEAR(own.tensor_seconds, uniform.tensor_seconds, 1e-12);
          EXPECT_NEAR(own.stall_seconds, uniform.stall_seconds, 1e-12);
          EXPECT_EQ(own.fullest_stage, uniform.fullest_stage);
          EXPECT_NEAR(own.needed_bytes(), uniform.needed_bytes(), 1);
          EXPECT_NEAR(own.seconds_range.high, uniform.seconds_range.high, 1e-12);
          EXPECT_NEAR(own.memory_range->high, uniform.memory_range->high, 1);
        }
      }
    }
  }
}

} // namespace
} // namespace tessera::cost
