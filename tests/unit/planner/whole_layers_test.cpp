// Strategies that divide some layers among tensor-parallel ranks and leave others whole.
#include "tessera/planner/whole_layers.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/config/config.h"
#include "tessera/cost/layer_table.h"
#include "tessera/planner/candidate_text.h"
#include "tessera/planner/search.h"
#include "tessera/planner/to_config.h"

#include "tests/unit/planner/small_trace.h"

namespace tessera::planner {
namespace {

using testing::HasSubstr;

constexpr double kSmallBytes = 1.5e8; // hold halves of a block, but no whole one
constexpr int kBlocks = 2; // too few for four stages

// A node of two large devices and one of two small ones.
cost::Cluster uneven_cluster(double large_bytes, double small_bytes) {
  cost::Cluster cluster = measured_cluster(2);
  cluster.kinds.push_back(cluster.kinds.front());
  cluster.kinds[0].memory_bytes = large_bytes;
  cluster.kinds[1].name = "small";
  cluster.kinds[1].memory_bytes = small_bytes;
  cluster.nodes.push_back({.kind = 1, .count = 2, .intra_bytes_per_s = 1e9});
  for (cost::Node& node : cluster.nodes) {
    node.inter_bytes_per_s = 1e9;
  }
  return cluster;
}

// Blocks with heavy weights, whose halves exchange about as long as they compute.
cost::DescribedModel heavy_model(const cost::Cluster& cluster) {
  ModelTrace traced = small_language_model(kBlocks);
  traced.global_batch_size = 64; // so that exchanges of a step take longer than its gradients
  for (graph::Parameter& parameter : traced.graph.parameters) {
    if (parameter.name != "wte.weight") {
      parameter.elements = 5'000'000;
      parameter.bytes = 4 * parameter.elements;
    }
  }
  traced.divisions.push_back(half_of(traced, 1e6));
  return describe_traced(traced, cluster);
}

SearchOptions options_on(const cost::Cluster& cluster, const cost::DescribedModel& model) {
  SearchOptions options;
  options.runnable_only = true;
  options.whole_layers = true;
  options.simulate = 1;
  options.constants = cost::runtime_constants(cluster, model.precision);
  return options;
}

cost::Strategy halves() {
  cost::Strategy strategy;
  strategy.pp = 2;
  strategy.tp = 2;
  strategy.microbatch_size = 4;
  strategy.boundaries = {0, 2, 3};
  strategy.distribution = cost::Distribution::kSpeed;
  strategy.activation_checkpointing = false;
  strategy.device_of_rank = {0, 1, 2, 3};
  return strategy;
}

TEST(WholeLayers, AreRowsOfTheWholeModelWithEachRanksSamples) {
  const cost::Cluster cluster = uneven_cluster(1e9, 1e9);
  const cost::DescribedModel model = heavy_model(cluster);
  const cost::Constants constants = cost::runtime_constants(cluster, model.precision);
  cost::Strategy some = halves();
  some.whole_layers = {false, false, true};
  const cost::LayerTable mixed(model, cluster, some, constants);
  const cost::LayerTable divided(model, cluster, halves(), constants);
  cost::Strategy replicas = halves();
  replicas.tp = 1;
  replicas.dp = 2;
  replicas.microbatch_size = 2;
  replicas.distribution = cost::Distribution::kAsMeasured;
  const cost::LayerTable whole(model, cluster, replicas, constants);
  const cost::StageLinks links = cost::place(some, cluster, constants).stages[1];
  for (int layer = 1; layer <= kBlocks; ++layer) {
    const bool is_whole = layer == 2;
    const cost::LayerTable& like = is_whole ? whole : divided;
    EXPECT_DOUBLE_EQ(
        mixed.compute_seconds(0, layer, layer + 1), like.compute_seconds(0, layer, layer + 1));
    EXPECT_EQ(mixed.parameters(layer, layer + 1), is_whole ? 5e6 : 2.5e6);
    EXPECT_EQ(mixed.whole_parameters(layer, layer + 1), is_whole ? 5e6 : 0);
    const cost::PassSeconds exchange = mixed.tensor_seconds(layer, layer + 1, links);
    EXPECT_EQ(exchange.forward > 0, !is_whole) << layer;
    // What a stage sends is as much on each rank.
    EXPECT_DOUBLE_EQ(mixed.cut_bytes(layer), divided.cut_bytes(layer));
  }
}

TEST(WholeLayers, AreThoseForWhichDevicesHaveRoom) {
  const cost::Cluster cluster = uneven_cluster(1e9, kSmallBytes);
  const cost::DescribedModel model = heavy_model(cluster);
  SearchOptions options = options_on(cluster, model);
  const Candidate best = search(model, cluster, options).best.front();
  options.whole_layers = false;
  const Candidate uniform = search(model, cluster, options).best.front();
  ASSERT_FALSE(best.strategy.whole_layers.empty()) << headline(uniform.strategy);
  EXPECT_LT(best.seconds(), 0.97 * uniform.seconds()) << headline(uniform.strategy);
  EXPECT_TRUE(best.cost.fits());
  ASSERT_EQ(best.strategy.pp, 2);
  for (int stage = 0; stage < 2; ++stage) {
    const auto [first, last] = best.strategy.layers_of(stage);
    const bool large = best.strategy.device_of_rank[static_cast<std::size_t>(2 * stage)] < 2;
    for (int layer = std::max(first, 1); layer < last; ++layer) {
      EXPECT_EQ(best.strategy.is_whole(static_cast<std::size_t>(layer)), large) << layer;
    }
  }
  EXPECT_THAT(headline(best.strategy), HasSubstr(" whole"));
}

// Each device of one node holds one of two blocks whole.
TEST(WholeLayers, AStageMayHaveSome) {
  const cost::Cluster cluster = uneven_cluster(2.6e8, 2.6e8);
  const cost::DescribedModel model = heavy_model(cluster);
  const Candidate best = search(model, cluster, options_on(cluster, model)).best.front();
  EXPECT_EQ(best.strategy.pp, 1);
  EXPECT_EQ(best.strategy.whole_layers, std::vector<bool>({false, false, true}));
}

// One block has more weights than a device holds, the other few: only that one can be whole,
// wherever it stands in the stage.
TEST(WholeLayers, AreThoseThatGainMost) {
  cost::Cluster cluster = measured_cluster(2);
  cluster.kinds.front().memory_bytes = 6e8;
  for (const int light : {1, 2}) {
    ModelTrace traced = small_language_model(kBlocks);
    traced.global_batch_size = 64;
    for (graph::Parameter& parameter : traced.graph.parameters) {
      if (parameter.name != "wte.weight") {
        const bool is_light = parameter.name == str("h.", light - 1, ".weight");
        parameter.elements = is_light ? 10'000 : 50'000'000;
        parameter.bytes = 4 * parameter.elements;
      }
    }
    traced.divisions.push_back(half_of(traced, 1e6));
    const cost::DescribedModel model = describe_traced(traced, cluster);
    const Candidate best = search(model, cluster, options_on(cluster, model)).best.front();
    std::vector<bool> expected(kBlocks + 1);
    expected[static_cast<std::size_t>(light)] = true;
    EXPECT_EQ(best.strategy.whole_layers, expected) << headline(best.strategy);
  }
}

// Whole in every layer, ranks of a group are replicas.
TEST(WholeLayers, AllOfThemAreReplicas) {
  const cost::Cluster cluster = uneven_cluster(1e9, 1e9);
  const cost::DescribedModel model = heavy_model(cluster);
  const cost::Constants constants = cost::runtime_constants(cluster, model.precision);
  cost::Strategy whole = halves();
  whole.whole_layers = {false, true, true};
  cost::Strategy replicas = halves();
  replicas.tp = 1;
  replicas.dp = 2;
  replicas.microbatch_size = 2;
  replicas.distribution = cost::Distribution::kAsMeasured;
  const auto of = [&](const cost::Strategy& strategy) {
    return cost::price(model, cluster, strategy, constants);
  };
  EXPECT_NEAR(of(whole).seconds, of(replicas).seconds, 1e-3 * of(replicas).seconds);
  EXPECT_NEAR(of(whole).needed_bytes(), of(replicas).needed_bytes(), 1);
}

TEST(WholeLayers, AreWrittenAndRun) {
  const cost::Cluster cluster = uneven_cluster(1e9, kSmallBytes);
  const cost::DescribedModel model = heavy_model(cluster);
  const Candidate best = search(model, cluster, options_on(cluster, model)).best.front();
  EXPECT_EQ(not_runnable(best, model), std::nullopt);
  const auto config = config::parse_config(to_config_json(best, model), "planned");
  EXPECT_EQ(config.tensor_parallel_degree, 2);
  for (std::size_t layer = 0; layer < model.layers.size(); ++layer) {
    EXPECT_EQ(
        config.tensor_parallel_degree_of.count(model.layers[layer].name),
        best.strategy.is_whole(layer) ? 1U : 0U);
  }
}

// Where all of it fits whole, replicas are as fast and there is nothing to add.
TEST(WholeLayers, AreNotAddedWhereNothingHasToBeDivided) {
  const cost::Cluster cluster = uneven_cluster(1e10, 1e10);
  const cost::DescribedModel model = heavy_model(cluster);
  const Candidate best = search(model, cluster, options_on(cluster, model)).best.front();
  EXPECT_TRUE(best.strategy.whole_layers.empty()) << headline(best.strategy);
}

TEST(WholeLayers, StrategiesThatCannotHaveThemAreRefused) {
  const auto refused = [](const cost::Strategy& strategy) -> std::string {
    try {
      cost::validate(strategy, 4, kBlocks + 1, 64);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  };
  cost::Strategy strategy = halves();
  EXPECT_EQ(refused(strategy), "no error");
  strategy.whole_layers = {false, true};
  EXPECT_THAT(refused(strategy), HasSubstr("found 2 values; write one for each of 3"));
  strategy.whole_layers.assign(kBlocks + 1, false);
  EXPECT_EQ(refused(strategy), "no error");
  strategy.whole_layers.front() = true;
  EXPECT_THAT(refused(strategy), HasSubstr("the first is not whole"));
  strategy.whole_layers.front() = false;
  strategy.same_samples = true;
  EXPECT_THAT(refused(strategy), HasSubstr("samples of each rank's own"));
}

} // namespace
} // namespace tessera::planner
