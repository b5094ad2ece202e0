// What links between pairs of nodes, and collectives measured among some nodes, do to prices.

#include "tessera/cost/links.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/cost/group_place.h"

#include "tests/unit/cost/small_cases.h"

namespace tessera::cost {
namespace {

// Four nodes of one device, two in each of two racks; between the racks `slow` bytes per second.
Cluster two_racks(double slow) {
  Cluster cluster = small_cluster(4, 0);
  for (Node& node : cluster.nodes) {
    node.count = 1;
  }
  for (const int here : {0, 1}) {
    for (const int there : {2, 3}) {
      cluster.links.push_back({.first = there, .second = here, .bytes_per_s = slow});
    }
  }
  return cluster;
}

StrategyCost price_bare(const DescribedModel& model, const Cluster& cluster, const Strategy& one) {
  return price(model, cluster, one, bare_constants());
}

TEST(Links, AnAllReduceGoesAtTheSlowestPairOfItsNodes) {
  const DescribedModel model = small_model(2);
  const double bytes = 2e6 * 4;
  const auto gradients = [&](const Cluster& cluster, const Strategy& strategy) {
    return price_bare(model, cluster, strategy).gradient_seconds;
  };
  const Strategy replicas = small_strategy(1, 4, 1, 1, 2);
  EXPECT_NEAR(gradients(two_racks(1e9), replicas), 2 * 3.0 / 4 * bytes / 1e9, 1e-12);
  EXPECT_NEAR(gradients(two_racks(1e7), replicas), 2 * 3.0 / 4 * bytes / 1e7, 1e-12);
  // One pair is enough, also where it would be no neighbour in a ring by rank.
  Cluster cluster = two_racks(1e9);
  cluster.links = {{.first = 1, .second = 3, .bytes_per_s = 1e7}};
  EXPECT_NEAR(gradients(cluster, replicas), 2 * 3.0 / 4 * bytes / 1e7, 1e-12);
  // PDT: the replicas of a stage are in one rack, the stages in two.
  EXPECT_NEAR(gradients(two_racks(1e7), small_strategy(2, 2, 1, 1, 2)), bytes / 2 / 1e9, 1e-12);
}

TEST(Links, RingsThatCrossOnePairShareItsLink) {
  const DescribedModel model = small_model(2);
  Cluster cluster = small_cluster(2, 0);
  cluster.links = {{.first = 0, .second = 1, .bytes_per_s = 1e8}};
  // DPT: the replicas of both stages are on both nodes.
  const StrategyCost cost = price_bare(model, cluster, small_strategy(2, 2, 1, 1, 2, "DPT"));
  EXPECT_NEAR(cost.gradient_seconds, 2 * 4e6 / 1e8, 1e-12);
}

TEST(Links, AMessageInsideANodeTakesNothingOfItsNetwork) {
  Cluster cluster = small_cluster(2, 0);
  cluster.nodes[0].count = 3;
  cluster.nodes[1].count = 1;
  cluster.nodes[0].intra_bytes_per_s = 1e10;
  cluster.nodes[0].inter_bytes_per_s = 1e8;
  cluster.nodes[1].inter_bytes_per_s = 1e9;
  // Of two replicas one has both stages on the first node, the other one of them.
  const Strategy strategy = small_strategy(2, 2, 1, 1, 2);
  EXPECT_EQ(place(strategy, cluster, bare_constants()).stages[0].next_bytes_per_s, 1e8);
}

TEST(Links, TensorParallelGroupsGoAtTheirSlowestPair) {
  const DescribedModel model = small_model(1, 0, "transformer_layer");
  Cluster cluster = small_cluster(2, 0);
  for (Node& node : cluster.nodes) {
    node.count = 1;
  }
  const Strategy strategy = small_strategy(1, 1, 2, 1, 1);
  EXPECT_NEAR(price_bare(model, cluster, strategy).tensor_seconds, 16 * 6 * 2000 / 1e9, 1e-12);
  cluster.links = {{.first = 0, .second = 1, .bytes_per_s = 1e7}};
  EXPECT_NEAR(price_bare(model, cluster, strategy).tensor_seconds, 16 * 6 * 2000 / 1e7, 1e-12);
}

TEST(Links, SendsBetweenTheSameNodesShareTheirLink) {
  Cluster cluster = small_cluster(2, 0);
  cluster.links = {{.first = 1, .second = 0, .bytes_per_s = 2e8}};
  // PDT: both replicas send from node 0 to node 1.
  EXPECT_EQ(
      place(small_strategy(2, 2, 1, 1, 2), cluster, bare_constants()).stages[0].next_bytes_per_s,
      1e8);
  // Stages 2 and 3 of four are on node 1; each has the link to itself on its way home.
  const auto stages = place(small_strategy(4, 1, 1, 1, 4), cluster, bare_constants()).stages;
  EXPECT_EQ(stages[3].home_bytes_per_s, 2e8);
  EXPECT_EQ(stages[1].home_bytes_per_s, 10e9);
}

TEST(Links, OnlyThoseBelowTheNetworksCount) {
  Cluster cluster = two_racks(1e7);
  cluster.links.push_back({.first = 0, .second = 1, .bytes_per_s = 1e10});
  const NodeLinks links(cluster);
  EXPECT_EQ(links.size(), 4);
  EXPECT_THAT(links.between(0, 1), testing::IsEmpty());
  ASSERT_THAT(links.between(0, 2), testing::SizeIs(1));
  ASSERT_THAT(links.between(2, 0), testing::SizeIs(1));
  EXPECT_EQ(links.between(0, 2)[0].link, links.between(2, 0)[0].link);
  EXPECT_NE(links.between(0, 2)[0].second, links.between(2, 0)[0].second);
  EXPECT_THAT(links.among({0, 1, 3}), testing::SizeIs(2));
}

// All-reduces of 8 MB by two ranks: 10 ms on nodes 0 and 1, 80 ms on nodes 2 and 3.
Cluster measured_pairs() {
  Cluster cluster = two_racks(1e9);
  cluster.collectives = {
      {"all_reduce", 2, 2, 4e6, 0.01, {0, 1}}, {"all_reduce", 2, 2, 4e6, 0.08, {2, 3}}};
  return cluster;
}

TEST(MeasuredCollectives, BelongToTheNodesTheyWereMeasuredAmong) {
  const DescribedModel model = small_model(2);
  const Cluster cluster = measured_pairs();
  // PDT: the replicas of stage 0 on nodes 0 and 1, those of stage 1 on nodes 2 and 3.
  const Strategy strategy = small_strategy(2, 2, 1, 1, 2);
  EXPECT_NEAR(price_bare(model, cluster, strategy).gradient_seconds, 0.08, 1e-12);
  Cluster even = cluster;
  even.collectives[1].seconds = 0.02;
  EXPECT_NEAR(price_bare(model, even, strategy).gradient_seconds, 0.02, 1e-12);
  const auto seconds = [&](const NodeSet& nodes) {
    return cluster.collective("all_reduce", 2, cluster.span_of(nodes), 4e6).seconds;
  };
  EXPECT_NEAR(seconds({0, 1}), 0.01, 1e-12);
  EXPECT_NEAR(seconds({2, 3}), 0.08, 1e-12);
  // Nothing was measured there: the longest time of other pairs.
  EXPECT_NEAR(seconds({0, 2}), 0.08, 1e-12);
  EXPECT_TRUE(cluster.collective("all_reduce", 2, cluster.span_of({0, 2}), 4e6).elsewhere);
}

TEST(MeasuredCollectives, OfOtherNodesDoNotHideASlowLink) {
  const DescribedModel model = small_model(2);
  Cluster cluster = measured_pairs();
  // DPT: replicas on nodes 0 and 2, and on 1 and 3. 80 ms are more than 4 MB need.
  const Strategy strategy = small_strategy(2, 2, 1, 1, 2, "DPT");
  EXPECT_NEAR(price_bare(model, cluster, strategy).gradient_seconds, 0.08, 1e-12);
  cluster.links[0].bytes_per_s = 1e7; // nodes 0 and 2
  EXPECT_NEAR(price_bare(model, cluster, strategy).gradient_seconds, 0.4, 1e-12);
  // A figure for any two nodes stands for these as well.
  for (CollectiveTime& one : cluster.collectives) {
    one.among = {};
  }
  cluster.collectives.pop_back();
  EXPECT_NEAR(price_bare(model, cluster, strategy).gradient_seconds, 0.01, 1e-12);
}

TEST(MeasuredCollectives, OfTensorParallelGroupsGoByTheirNodesToo) {
  const DescribedModel model = small_model(1, 0, "transformer_layer");
  Cluster cluster = two_racks(1e9);
  cluster.collectives = {
      {"all_reduce", 2, 2, 2000, 1e-3, {0, 1}}, {"all_reduce", 2, 2, 2000, 5e-3, {2, 3}}};
  const auto of_replicas = [&](const std::string& letters) {
    const Strategy strategy = small_strategy(1, 2, 2, 1, 1, letters);
    return price_bare(model, cluster, strategy).stages[0].tensor_seconds;
  };
  // The slower of the two groups; on nodes 0 and 2 nothing was measured.
  EXPECT_NEAR(of_replicas("PDT"), 6 * 5e-3, 1e-12);
  cluster.collectives[1].seconds = 2e-3;
  EXPECT_NEAR(of_replicas("PDT"), 6 * 2e-3, 1e-12);
  EXPECT_NEAR(of_replicas("PTD"), 6 * 2e-3, 1e-12);
  cluster.links[0].bytes_per_s = 1e5;
  EXPECT_NEAR(of_replicas("PTD"), 6 * 2000 / 1e5, 1e-12);
}

TEST(MeasuredCollectives, NodesThatCannotBeAreRefused) {
  const auto refusal = [](const NodeSet& among) -> std::string {
    Cluster cluster = two_racks(1e9);
    cluster.collectives = {{"all_reduce", 2, 2, 2000, 1e-3, among}};
    try {
      validate(cluster);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  };
  using testing::HasSubstr;
  EXPECT_EQ(refusal({}), "accepted");
  EXPECT_EQ(refusal({1, 3}), "accepted");
  EXPECT_THAT(refusal({3, 1}), HasSubstr("among: found [3, 1]; write the numbers of its 2 nodes"));
  EXPECT_THAT(refusal({1, 1}), HasSubstr("among: found [1, 1]"));
  EXPECT_THAT(refusal({1, 4}), HasSubstr("each from 0 to 3"));
  EXPECT_THAT(refusal({1}), HasSubstr("among: found [1]"));
}

} // namespace
} // namespace tessera::cost
