// Rows, columns and bunched groups of meshes: what their panels take on their own links.

#include <cmath>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/cost/links.h"

#include "tests/unit/cost/small_cases.h"

namespace tessera::cost {
namespace {

// `nodes` of four devices; 8 GB/s inside, 1 GB/s between them.
Cluster quads(int nodes) {
  Cluster cluster = small_cluster(nodes, 0);
  for (Node& node : cluster.nodes) {
    node.count = 4;
    node.intra_bytes_per_s = 8e9;
  }
  for (DeviceKind& kind : cluster.kinds) {
    kind.product_flops_per_s = 1e12;
  }
  return cluster;
}

Strategy mesh_strategy(int ranks, int dp = 1, const std::string& letters = "PDT") {
  Strategy strategy = small_strategy(1, dp, ranks, 4, 1, letters);
  strategy.distribution = Distribution::kMesh;
  return strategy;
}

DescribedModel sized_layer(int hidden, int sequence) {
  DescribedModel model;
  model.name = "sized";
  model.global_batch_size = 4;
  model.activation_checkpointing = false;
  model.layers = {
      {.name = "layer",
       .kind = "transformer_layer",
       .parameters = 12 * hidden * hidden,
       .shares_parameters_with = {},
       .output_elements_per_sample = hidden * sequence}};
  model.source =
      SizedModel{.sequence_length = sequence, .num_attention_heads = 16, .vocabulary_size = 1};
  return model;
}

Constants without_latency() {
  Constants constants = bare_constants();
  constants.device_latency_seconds = 0;
  return constants;
}

TEST(MeshLines, ANodeHoldsATile) {
  // 2 x 2 on one node: one level inside it.
  const auto inside = place(mesh_strategy(4), quads(1), without_latency()).stages[0];
  EXPECT_NEAR(inside.rows.seconds_per_byte, 1 / 8e9, 1e-20);
  EXPECT_NEAR(inside.columns.seconds_per_byte, 1 / 8e9, 1e-20);
  // 4 x 4 on four nodes, bunched: a row has two ranks on each of two nodes, and two rows share the
  // network of a node.
  const auto bunched = place(mesh_strategy(16), quads(4), without_latency()).stages[0];
  EXPECT_NEAR(bunched.rows.seconds_per_byte, 2 / 1e9 + 1 / 8e9, 1e-18);
  EXPECT_NEAR(bunched.columns.seconds_per_byte, 2 / 1e9 + 1 / 8e9, 1e-18);
  // 6 x 6 on nine nodes: log2(3) levels between the three nodes of a row.
  const auto nine = place(mesh_strategy(36), quads(9), without_latency()).stages[0];
  EXPECT_NEAR(nine.rows.seconds_per_byte, 2 * std::log2(3.0) / 1e9 + 1 / 8e9, 1e-18);
}

TEST(MeshLines, ThatAreNotBunchedCrowdTheCables) {
  // Devices that are dealt in turn cannot form tiles: sixteen nodes of one device.
  Cluster apart = quads(16);
  for (Node& node : apart.nodes) {
    node.count = 1;
  }
  const auto alone = place(mesh_strategy(16), apart, without_latency()).stages[0];
  EXPECT_NEAR(alone.rows.seconds_per_byte, 2 / 1e9, 1e-18); // two levels, a network to itself
  // Three and five devices: row by row, so that columns of a node share its network.
  Cluster uneven = quads(2);
  uneven.nodes[0].count = 3;
  uneven.nodes[1].count = 5;
  const auto rows = place(mesh_strategy(8), uneven, without_latency()).stages[0]; // 2 x 4
  EXPECT_NEAR(rows.rows.seconds_per_byte, 1 / 1e9 + std::log2(3.0) / 8e9, 1e-18);
  EXPECT_NEAR(rows.columns.seconds_per_byte, 3 / 1e9, 1e-18); // three columns on one cable
}

TEST(MeshLines, OneStreamIsBoundedByItself) {
  Cluster cluster = quads(4);
  for (Node& node : cluster.nodes) {
    node.stream_bytes_per_s = 0.25e9;
    node.network_latency_seconds = 1e-4;
  }
  const auto place_of = place(mesh_strategy(16), cluster, without_latency()).stages[0];
  EXPECT_NEAR(place_of.rows.seconds_per_byte, 4 / 1e9 + 1 / 8e9, 1e-18);
  EXPECT_NEAR(place_of.rows.message_seconds, 1e-4, 1e-18);
  // A ring too, and a send: each of four from a node has a quarter of its network.
  EXPECT_NEAR(place_of.tensor_bytes_per_s, 0.25e9, 1);
  const auto sent = [&] {
    return place(small_strategy(2, 8, 1, 1, 2), cluster, without_latency())
        .stages[0]
        .next_bytes_per_s;
  };
  EXPECT_NEAR(sent(), 0.25e9, 1);
  cluster.nodes[2].stream_bytes_per_s = 0.1e9;
  EXPECT_NEAR(sent(), 0.1e9, 1);
}

TEST(MeshLines, StepsTakeAsLongAsThoseOfRings) {
  Cluster cluster = quads(4);
  Constants constants = bare_constants();
  constants.link_latency_seconds = 2e-5;
  constants.device_latency_seconds = 5e-6;
  const auto message = [&](int ranks) {
    return place(mesh_strategy(ranks), cluster.first_nodes(ranks / 4), constants)
        .stages[0]
        .rows.message_seconds;
  };
  // One level inside a node; with four nodes also one between two of them.
  EXPECT_DOUBLE_EQ(message(4), 2e-5);
  EXPECT_DOUBLE_EQ(message(16), 2e-5 + 2e-5);
  for (Node& node : cluster.nodes) {
    node.network_latency_seconds = 1e-4;
  }
  EXPECT_DOUBLE_EQ(message(4), 5e-6);
  EXPECT_DOUBLE_EQ(message(16), 1e-4 + 5e-6);
}

TEST(MeshLines, TwoMeshesShareNetworks) {
  // DPT deals replicas so that each mesh of four lies on one node; TPD spreads it over all.
  const auto together = place(mesh_strategy(4, 4), quads(4), without_latency()).stages[0];
  EXPECT_NEAR(together.rows.seconds_per_byte, 1 / 8e9, 1e-20);
  const auto spread = place(mesh_strategy(4, 4, "TPD"), quads(4), without_latency()).stages[0];
  // Every device of a node is in another mesh: four rows cross its network.
  EXPECT_NEAR(spread.rows.seconds_per_byte, 4 / 1e9, 1e-18);
}

TEST(MeshLines, PricesAreThoseOfTableOne) {
  // Along rows 7 b s h / q, along columns 12 h^2 / q scalars of two bytes; three times as much
  // forward and backward as forward, four times with recomputation.
  constexpr double kHidden = 64;
  constexpr double kSequence = 8;
  constexpr double kBatch = 4;
  const auto model = sized_layer(static_cast<int>(kHidden), static_cast<int>(kSequence));
  for (const int q : {2, 4}) {
    const Cluster cluster = quads(q * q / 4);
    Strategy strategy = mesh_strategy(q * q);
    strategy.activation_checkpointing = false;
    const double rows = 7 * kBatch * kSequence * kHidden / q * 2;
    const double columns = 12 * kHidden * kHidden / q * 2;
    const double per_byte = q == 2 ? 1 / 8e9 : 2 / 1e9 + 1 / 8e9;
    const auto tensor = [&] {
      return price(model, cluster, strategy, without_latency()).stages[0].tensor_seconds;
    };
    EXPECT_NEAR(tensor() / (3 * (rows + columns) * per_byte), 1, 1e-9) << q;
    strategy.activation_checkpointing = true;
    EXPECT_NEAR(tensor() / (4 * (rows + columns) * per_byte), 1, 1e-9) << q;
    // Megatron: 4 (p - 1) / p b s h forward, as much backward, half of it for a checkpoint.
    strategy.distribution = Distribution::kSpeed;
    const double p = q * q;
    const double ring = q == 2 ? 8e9 : 1e9;
    const double reduced = 4 * (p - 1) / p * kBatch * kSequence * kHidden * 2;
    EXPECT_NEAR(tensor() / (3.25 * reduced / ring), 1, 1e-9) << q;
    strategy.distribution = Distribution::kMemory;
    EXPECT_THROW(tensor(), ConfigError);
  }
}

TEST(MeshLines, RowsAndColumnsHaveTheirOwnLinks) {
  // Two racks: nodes 0 and 1, 2 and 3, with a slow link between every pair across. Tiles lie as
  // (0 1) over (2 3), so that columns cross the racks and rows do not.
  Cluster cluster = quads(4);
  const auto before = place(mesh_strategy(16), cluster, without_latency()).stages[0];
  for (const int here : {0, 1}) {
    for (const int there : {2, 3}) {
      cluster.links.push_back({.first = here, .second = there, .bytes_per_s = 1e7});
    }
  }
  const auto after = place(mesh_strategy(16), cluster, without_latency()).stages[0];
  EXPECT_NEAR(after.rows.seconds_per_byte, before.rows.seconds_per_byte, 1e-18);
  EXPECT_NEAR(after.columns.seconds_per_byte, 2 / 1e7 + 1 / 8e9, 1e-16);
}

} // namespace
} // namespace tessera::cost
