#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/partition/partition.h"

#include "tests/unit/graph/graph_builder.h"

namespace tessera::partitioning {
namespace {

using graph::GraphBuilder;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

Result by_memory(GraphBuilder& model, int partitions) {
  return partition(model.graph(), {.partitions = partitions, .memory_weight = 1.0});
}

// A sequence of `count` modules below `parent`, each with `size` parameters.
void sequence(GraphBuilder& model, int parent, int count, int size) {
  for (int i = 0; i < count; ++i) {
    model.leaf(parent, std::to_string(i), size);
  }
}

std::vector<int> partition_of_children(const Result& result, int node) {
  std::vector<int> partitions;
  for (const int child : result.tree.nodes[node].children) {
    partitions.push_back(result.partition_of_node[child]);
  }
  return partitions;
}

TEST(AutomaticPartition, EqualLayersAreStagesInOrder) {
  GraphBuilder model;
  sequence(model, 0, 8, 100);
  const Result result = by_memory(model, 4);
  EXPECT_THAT(partition_of_children(result, 0), ElementsAre(0, 0, 1, 1, 2, 2, 3, 3));
  EXPECT_THAT(result.total, ElementsAre(.25, .25, .25, .25));
  EXPECT_THAT(result.warnings, IsEmpty());
}

TEST(AutomaticPartition, ASegmentWithoutDevicesStaysWithTheParent) {
  GraphBuilder model;
  const int large = model.add(0, "large");
  sequence(model, large, 8, 1125); // .9 of the cost
  model.leaf(0, "small", 1000); // .1
  const Result result = by_memory(model, 8);
  ASSERT_GE(result.segments.size(), 2U);
  EXPECT_EQ(result.segments[0].devices.size(), 8U);
  EXPECT_THAT(result.segments[1].devices, IsEmpty());
  EXPECT_EQ(result.partition.at("small"), result.partition.at(""));
  EXPECT_THAT(partition_of_children(result, large), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST(AutomaticPartition, DevicesFollowCost) {
  GraphBuilder model;
  sequence(model, model.add(0, "left"), 10, 70);
  sequence(model, model.add(0, "right"), 10, 30);
  const Result result = by_memory(model, 8);
  EXPECT_EQ(result.segments[0].devices.size(), 6U);
  EXPECT_EQ(result.segments[1].devices.size(), 2U);
  EXPECT_NEAR(result.segments[0].cost, .7, 1e-12);
}

TEST(AutomaticPartition, ALargeLeafTakesOneDeviceOnly) {
  // As published, all four devices would go to the embedding, and three of
  // them would hold nothing.
  GraphBuilder model;
  model.leaf(0, "embedding", 100000);
  sequence(model, 0, 6, 10);
  const Result result = by_memory(model, 4);
  const std::vector<int> partitions = partition_of_children(result, 0);
  EXPECT_EQ(std::count(partitions.begin(), partitions.end(), partitions[0]), 1);
  EXPECT_EQ(std::set<int>(partitions.begin(), partitions.end()).size(), 4U);
  EXPECT_THAT(result.warnings, IsEmpty());
}

TEST(AutomaticPartition, AChainUsesEveryDeviceItCan) {
  GraphBuilder model;
  model.parameter(0, "w", 10);
  int module = 0;
  for (int i = 0; i < 3; ++i) {
    module = model.leaf(module, "m", 10);
  }
  const Result result = by_memory(model, 4);
  EXPECT_THAT(result.partition_of_node, ElementsAre(0, 1, 2, 3));
}

TEST(AutomaticPartition, MoreDevicesThanModulesIsAWarning) {
  GraphBuilder model;
  sequence(model, 0, 2, 10);
  const Result result = by_memory(model, 4);
  EXPECT_THAT(partition_of_children(result, 0), ElementsAre(0, 1));
  EXPECT_THAT(
      result.warnings,
      ElementsAre(testing::AllOf(HasSubstr("partition 2, 3"), HasSubstr("2 separable modules"))));
  EXPECT_EQ(result.total.size(), 4U);
}

TEST(AutomaticPartition, ModulesWithoutParametersRunOnTheParentsRank) {
  GraphBuilder model;
  for (int i = 0; i < 4; ++i) {
    const int layer = model.add(0, "layer" + std::to_string(i));
    model.leaf(layer, "linear", 100);
    const int activation = model.add(layer, "activation");
    model[activation].activation_bytes = 1 << 20; // dear, but not movable
    model.add(0, "dropout" + std::to_string(i));
  }
  const Result result = by_memory(model, 4);
  for (int i = 0; i < 4; ++i) {
    const std::string layer = "layer" + std::to_string(i);
    EXPECT_EQ(result.partition.at(layer), i);
    EXPECT_EQ(result.partition.at(layer + ".activation"), i);
    EXPECT_EQ(result.partition.at("dropout" + std::to_string(i)), 0);
  }
}

TEST(AutomaticPartition, SharersGoTogether) {
  GraphBuilder model;
  const int embedding = model.leaf(0, "embedding", 50);
  sequence(model, model.add(0, "body"), 6, 100);
  const int head = model.add(0, "head");
  model.share(head, 0);
  model[embedding].first_call = 1;
  const Result result = by_memory(model, 3);
  EXPECT_EQ(result.partition.at("embedding"), result.partition.at("head"));
}

TEST(AutomaticPartition, NothingToWeighIsSplitByNumber) {
  // All of computation, untimed: no module has descendants.
  GraphBuilder model;
  sequence(model, 0, 9, 10);
  const Result result = partition(model.graph(), {.partitions = 3, .memory_weight = 0.0});
  EXPECT_THAT(partition_of_children(result, 0), ElementsAre(0, 0, 0, 1, 1, 1, 2, 2, 2));
}

TEST(AutomaticPartition, OneModuleOnOnePartition) {
  GraphBuilder model;
  model.parameter(0, "w", 4);
  const Result result = by_memory(model, 1);
  EXPECT_THAT(result.partition, ElementsAre(std::pair("", 0)));
  EXPECT_THAT(result.cost, ElementsAre(1));
  EXPECT_THAT(result.total, ElementsAre(1));
}

TEST(AutomaticPartition, BadOptionsAreRefused) {
  GraphBuilder model;
  EXPECT_THROW(by_memory(model, 0), ConfigError);
  EXPECT_THROW(partition(model.graph(), {.partitions = 1, .memory_weight = 2}), ConfigError);
}

// What holds for every model and every degree.
TEST(AutomaticPartition, RandomModels) {
  std::mt19937 random(21);
  for (int round = 0; round < 3000; ++round) {
    const int size = 1 + round % 60;
    const graph::ModelGraph model = graph::random_graph(random, size);
    const Options options = {
        .partitions = 1 + static_cast<int>(random() % 16), .memory_weight = (round % 6) / 5.0};
    const Result result = partition(model, options);
    const Result again = partition(model, options);
    EXPECT_EQ(result.partition, again.partition);
    EXPECT_EQ(result.warnings, again.warnings);

    ASSERT_EQ(result.partition.size(), model.modules.size());
    std::set<int> with_parameters;
    std::set<int> nodes_with_parameters;
    std::vector<int> of_parameter(model.parameters.size(), -1);
    for (std::size_t i = 0; i < model.modules.size(); ++i) {
      const int at = result.partition.at(model.modules[i].path);
      EXPECT_GE(at, 0);
      EXPECT_LT(at, options.partitions);
      for (const int parameter : model.modules[i].parameters) {
        with_parameters.insert(at);
        nodes_with_parameters.insert(result.tree.node_of_module[i]);
        EXPECT_TRUE(of_parameter[parameter] == -1 || of_parameter[parameter] == at)
            << "parameter " << parameter << " is on two partitions";
        of_parameter[parameter] = at;
      }
    }
    // Every partition holds a parameter where there are enough to go round.
    const std::size_t possible =
        std::min<std::size_t>(options.partitions, nodes_with_parameters.size());
    EXPECT_EQ(with_parameters.size(), possible);
    EXPECT_EQ(result.warnings.empty(), possible == static_cast<std::size_t>(options.partitions));
    EXPECT_NEAR(std::accumulate(result.total.begin(), result.total.end(), 0.0), 1, 1e-9);
    // Each node's children divide what the node has and nothing else.
    EXPECT_EQ(result.partition_of_node[0], 0);
    for (const Segment& segment : result.segments) {
      EXPECT_LE(segment.devices.size(), segment.nodes.size() * model.modules.size());
      for (const int node : segment.nodes) {
        EXPECT_EQ(result.tree.nodes[node].parent, segment.parent);
      }
    }
    ASSERT_FALSE(HasFailure()) << "round " << round << ", " << options.partitions << " partitions";
  }
}

} // namespace
} // namespace tessera::partitioning
