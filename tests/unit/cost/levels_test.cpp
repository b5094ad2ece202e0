// Networks of several levels, network cards, and collectives by algorithm.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/cost/collective.h"
#include "tessera/cost/group_place.h"
#include "tessera/cost/links.h"

#include "tests/unit/cost/small_cases.h"

namespace tessera::cost {
namespace {

// So many nodes of one device; each two of them behind a switch that `rack` leads out of.
Cluster racks(int nodes, double rack) {
  Cluster cluster = small_cluster(nodes, 0);
  for (Node& node : cluster.nodes) {
    node.count = 1;
  }
  for (int n = 0; n + 1 < nodes; n += 2) {
    cluster.groups.push_back({.nodes = {n, n + 1}, .bytes_per_s = rack});
  }
  return cluster;
}

double gradients(const Cluster& cluster, const Strategy& strategy) {
  return price(small_model(2), cluster, strategy, bare_constants()).gradient_seconds;
}

TEST(Levels, AllFlowsOutOfAGroupShareItsWayOut) {
  // PDT: both replicas of stage 0 are in the first rack and send to the second.
  const auto stages = place(small_strategy(2, 2, 1, 1, 2), racks(4, 1e8), bare_constants()).stages;
  EXPECT_EQ(stages[0].next_bytes_per_s, 0.5e8);
  // DPT: each replica has its stages in one rack.
  const auto inside =
      place(small_strategy(2, 2, 1, 1, 2, "DPT"), racks(4, 1e8), bare_constants()).stages;
  EXPECT_EQ(inside[0].next_bytes_per_s, 1e9);
}

TEST(Levels, ARingLeavesAGroupOnceAndRingsShareTheWayOut) {
  const double bytes = 2e6 * 4;
  EXPECT_NEAR(
      gradients(racks(4, 1e8), small_strategy(1, 4, 1, 1, 2)), 2 * 3.0 / 4 * bytes / 1e8, 1e-12);
  // Two stages, whose replicas are in both racks.
  EXPECT_NEAR(
      gradients(racks(4, 1e8), small_strategy(2, 2, 1, 1, 2, "DPT")), 2 * bytes / 2 / 1e8, 1e-12);
  // Replicas of one rack do not leave it.
  EXPECT_NEAR(gradients(racks(4, 1e8), small_strategy(2, 2, 1, 1, 2)), bytes / 2 / 1e9, 1e-12);
}

TEST(Levels, GroupsOfGroupsAreFurtherLevels) {
  Cluster cluster = racks(8, 1e8);
  cluster.groups.push_back({.nodes = {0, 1, 2, 3}, .bytes_per_s = 1e7});
  cluster.groups.push_back({.nodes = {4, 5, 6, 7}, .bytes_per_s = 1e7});
  validate(cluster);
  const double bytes = 1e6 * 4; // of a stage
  // PDT: replicas of a stage leave their racks, not the half.
  EXPECT_NEAR(gradients(cluster, small_strategy(2, 4, 1, 1, 2)), 2 * 3.0 / 4 * bytes / 1e8, 1e-12);
  EXPECT_NEAR(
      gradients(cluster, small_strategy(1, 8, 1, 1, 2)), 2 * 7.0 / 8 * 2 * bytes / 1e7, 1e-12);
  EXPECT_EQ(cluster.between(0, 1), 1e9);
  EXPECT_EQ(cluster.between(0, 2), 1e8);
  EXPECT_EQ(cluster.between(0, 4), 1e7);
  EXPECT_THAT(NodeLinks(cluster).between(0, 4), testing::SizeIs(4));
}

TEST(Levels, APartOfAClusterKeepsWhatIsLeftOfItsGroups) {
  const Cluster part = racks(6, 1e8).first_nodes(3);
  ASSERT_THAT(part.groups, testing::SizeIs(2));
  EXPECT_THAT(part.groups[0].nodes, testing::ElementsAre(0, 1));
  EXPECT_THAT(part.groups[1].nodes, testing::ElementsAre(2));
  const auto renumbered = groups_among(racks(6, 1e8).groups, {1, 4, 5});
  ASSERT_THAT(renumbered, testing::SizeIs(2));
  EXPECT_THAT(renumbered[1].nodes, testing::ElementsAre(1, 2));
}

TEST(Levels, GroupsThatCrossAreAnError) {
  const auto message = [](Cluster cluster, NodeSet nodes, double bytes_per_s) {
    cluster.groups.push_back({std::move(nodes), bytes_per_s});
    try {
      validate(cluster);
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message(racks(4, 1e8), {0, 1, 2, 3}, 1e8), "");
  EXPECT_THAT(
      message(racks(4, 1e8), {1, 2}, 1e8),
      testing::HasSubstr(
          "groups[2].nodes: found [1, 2], which shares node 1 with groups[0], [0, 1], "
          "and neither holds the other"));
  EXPECT_THAT(
      message(racks(4, 1e8), {2, 1}, 1e8),
      testing::HasSubstr("groups[2].nodes: found [2, 1]; write numbers of nodes, ascending"));
  EXPECT_THAT(
      message(racks(4, 1e8), {4}, 1e8),
      testing::HasSubstr("found [4]; write numbers of nodes, ascending, each from 0 to 3"));
  EXPECT_THAT(message(racks(4, 1e8), {}, 1e8), testing::HasSubstr("groups[2].nodes"));
  EXPECT_THAT(message(racks(4, 1e8), {0}, 0), testing::HasSubstr("groups[2].gbit_per_s: found 0"));
}

TEST(NetworkCards, AStreamGoesThroughOneAndAGroupThroughAsManyAsItHasRanks) {
  Cluster cluster = small_cluster(2, 0); // of two devices
  for (Node& node : cluster.nodes) {
    node.network_cards = 4;
  }
  const Node& node = cluster.nodes[0];
  EXPECT_EQ(stream_bytes_per_s(node), 0.25e9);
  EXPECT_EQ(collective_bytes_per_s(node, 1), 0.25e9);
  EXPECT_EQ(collective_bytes_per_s(node, 3), 0.75e9);
  EXPECT_EQ(collective_bytes_per_s(node, 8), 1e9);
  const double bytes = 2e6 * 4;
  EXPECT_NEAR(
      gradients(cluster, small_strategy(1, 4, 1, 1, 2)), 2 * 3.0 / 4 * bytes / 0.5e9, 1e-12);
  // DPT: a pipeline's stages are on one node, and each stage has one replica on each.
  EXPECT_NEAR(gradients(cluster, small_strategy(2, 2, 1, 1, 2, "DPT")), bytes / 2 / 0.25e9, 1e-12);
}

TEST(Collectives, AllStepsOfARingOverNodesAreStepsBetweenThem) {
  const Traffic gather = ring_traffic("all_gather", 16, 2, 100);
  EXPECT_EQ(gather.wire_bytes, 1500);
  EXPECT_EQ(gather.steps, 15);
  EXPECT_EQ(gather.inside_steps, 0);
  const Traffic spread = ring_traffic("all_reduce", 8, 8, 100);
  EXPECT_EQ(spread.steps, 14);
  EXPECT_EQ(spread.inside_steps, 0);
  EXPECT_EQ(ring_traffic("all_reduce", 8, 1, 100).inside_steps, 14);
  const Traffic panel = ring_traffic("panel", 8, 8, 100); // all of it in one step
  EXPECT_EQ(panel.steps, 1);
  EXPECT_EQ(panel.wire_bytes, 100);
}

TEST(Collectives, ATreeHasTheStepsOfItsDepth) {
  const Traffic tree = tree_traffic(64, 8, 100, 0.92);
  EXPECT_EQ(tree.steps, 2 * 3);
  EXPECT_EQ(tree.inside_steps, 2 * 7);
  EXPECT_NEAR(tree.wire_bytes, 2 * 63.0 / 64 * 100 / 0.92, 1e-9);
}

// Small all-reduces go by trees and large ones by a ring; they meet where both take as long.
TEST(Collectives, TheFasterAlgorithmIsTaken) {
  Cluster cluster = racks(16, 1e9);
  cluster.groups.clear();
  for (Node& node : cluster.nodes) {
    node.network_latency_seconds = 1e-3;
  }
  Constants constants = bare_constants();
  const Strategy strategy = small_strategy(1, 16, 1, 1, 2);
  const Places places(strategy, cluster);
  const GroupPlace group = places.of(places.replicas(0, 0));
  const auto delay = [&](double bytes) {
    return all_reduce_delay(group, places.links(), bytes, cluster, constants);
  };
  const double longer = 2 * 15.0 / 16 * (1 / constants.tree_bandwidth_share - 1) / 1e9; // a byte
  EXPECT_NEAR(delay(1), 8e-3, 1e-9);
  EXPECT_NEAR(delay(1e7), 8e-3 + 1e7 * longer, 1e-9);
  const double meets = 22e-3 / longer;
  EXPECT_NEAR(delay(0.99 * meets), 30e-3 - 0.01 * 22e-3, 1e-9);
  EXPECT_NEAR(delay(1.01 * meets), 30e-3, 1e-9);
  EXPECT_NEAR(delay(100 * meets), 30e-3, 1e-9);
  cluster.measured = true; // the runtime's own collectives are rings
  EXPECT_NEAR(delay(1), 30e-3, 1e-9);
}

} // namespace
} // namespace tessera::cost
