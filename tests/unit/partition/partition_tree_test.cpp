#include "tessera/report/partition_tree.h"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/partition/partition.h"

#include "tests/unit/graph/graph_builder.h"
#include "tests/unit/partition/t5_graph.h"

namespace tessera::report {
namespace {

using testing::HasSubstr;
using testing::Not;

// A graph and its partition, which a view refers to.
struct Decided {
  graph::ModelGraph graph;
  partitioning::Result result;
  PartitionView view;

  Decided(graph::ModelGraph model, const partitioning::Options& options)
      : graph(std::move(model)),
        result(partitioning::partition(graph, options)),
        view{
            graph,
            result.tree,
            result.cost,
            result.partition_of_node,
            result.total,
            result.warnings,
            options.memory_weight} {}
};

Decided decide_t5(int partitions, double memory_weight) {
  return Decided(
      partitioning::t5_graph(), {.partitions = partitions, .memory_weight = memory_weight});
}

TEST(PartitionTree, TerminalTreeOfFigureNine) {
  const Decided t5 = decide_t5(8, 1.0);
  EXPECT_THAT(
      partition_tree_text(t5.view),
      testing::StartsWith(
          R"(module                       cost    partition
t5-11b                       1.0000  0
├─ word_embedding + lm_head  0.0027  0
├─ encoder                   0.4661  0
│  ├─ layers[0:6]            0.1165  0
│  ├─ layers[6:12]           0.1165  1
│  ├─ layers[12:18]          0.1165  2
│  ├─ layers[18:24]          0.1165  3
│  └─ final_layer_norm       0.0000  3
└─ decoder                   0.5309  4
   ├─ layers[0:6]            0.1327  4
   ├─ layers[6:12]           0.1327  5
   ├─ layers[12:18]          0.1327  6
   ├─ layers[18:24]          0.1327  7
   └─ final_layer_norm       0.0000  7

partition   cost  (even: 0.1250)
        0  0.1195  █)"));
}

TEST(PartitionTree, EveryNodeIsThereWhenAsked) {
  const Decided t5 = decide_t5(8, 1.0);
  EXPECT_EQ(partition_boxes(t5.view, true).size(), t5.result.tree.nodes.size());
  EXPECT_THAT(partition_tree_text(t5.view, true), HasSubstr("cross_attention"));
  EXPECT_THAT(partition_tree_text(t5.view), Not(HasSubstr("cross_attention")));
}

TEST(PartitionTree, CollapsedBoxesKeepCostsAndModules) {
  const Decided t5 = decide_t5(8, 0.2);
  const std::vector<PartitionBox> boxes = partition_boxes(t5.view);
  EXPECT_EQ(boxes[0].modules, static_cast<int>(t5.graph.modules.size()));
  EXPECT_EQ(boxes[0].depth, 0);
  for (const PartitionBox& box : boxes) {
    double cost = 0;
    for (const int child : box.children) {
      EXPECT_EQ(boxes[child].depth, box.depth + 1);
      cost += boxes[child].cost;
    }
    EXPECT_LE(cost, box.cost + 1e-9);
  }
}

TEST(PartitionTree, OneLargeLayerOverSeveralPartitionsIsDrawnOpen) {
  const Decided t5 = decide_t5(60, 1.0);
  const std::string text = partition_tree_text(t5.view);
  EXPECT_THAT(text, HasSubstr("layers.0 "));
  EXPECT_THAT(text, HasSubstr("feed_forward"));
}

TEST(PartitionTree, RunsEndAtAnotherNameAGapOrAnotherPartition) {
  graph::GraphBuilder model("net");
  for (const char* name : {"0", "1", "3", "h.0", "h.1", "x2", "x3"}) {
    model.leaf(0, name, 100);
  }
  const Decided one(model.graph(), {.partitions = 1, .memory_weight = 1.0});
  // One partition needs no boxes below the root.
  EXPECT_EQ(partition_boxes(one.view).size(), 1U);
  const Decided two(model.graph(), {.partitions = 2, .memory_weight = 1.0});
  std::vector<std::string> labels;
  for (const PartitionBox& box : partition_boxes(two.view)) {
    labels.push_back(box.label);
  }
  EXPECT_THAT(labels, testing::ElementsAre("", "[0:2]", "3", "h[0:2]", "x2", "x3"));
}

TEST(PartitionTree, JsonHasEveryNodeAndTheTotals) {
  const Decided t5 = decide_t5(8, 0.2);
  const auto json = nlohmann::json::parse(partition_tree_json(t5.view));
  EXPECT_EQ(json["model"], "t5-11b");
  EXPECT_EQ(json["pipeline_parallel_degree"], 8);
  EXPECT_EQ(json["memory_weight"], 0.2);
  EXPECT_EQ(json["totals"].get<std::vector<double>>(), t5.result.total);
  EXPECT_TRUE(json["warnings"].empty());
  ASSERT_EQ(json["nodes"].size(), t5.result.tree.nodes.size());
  std::size_t modules = 0;
  for (const auto& node : json["nodes"]) {
    EXPECT_EQ(node["path"], node["modules"][0]);
    for (const auto& path : node["modules"]) {
      EXPECT_EQ(node["partition"], t5.result.partition.at(path));
      ++modules;
    }
  }
  EXPECT_EQ(modules, t5.graph.modules.size());
  EXPECT_EQ(json["nodes"][0]["cost"], 1.0);
}

TEST(PartitionTree, SvgIsOneFileThatNamesEveryBox) {
  const Decided t5 = decide_t5(8, 0.2);
  const std::string svg = partition_tree_svg(t5.view);
  EXPECT_THAT(svg, testing::StartsWith("<svg xmlns="));
  EXPECT_THAT(svg, testing::EndsWith("</svg>\n"));
  EXPECT_THAT(svg, HasSubstr("layers[20:24]"));
  EXPECT_THAT(svg, HasSubstr("0.4070 on partition 1"));
  // Nothing is loaded from elsewhere: the one address is the namespace.
  EXPECT_EQ(svg.find("http", svg.find("http") + 1), std::string::npos);
  EXPECT_THAT(svg, Not(HasSubstr("href")));
}

TEST(PartitionTree, NamesAreEscaped) {
  graph::GraphBuilder model("a<b>&\"c\"");
  model.leaf(0, "x<y", 1);
  model.leaf(0, "\xff", 1); // no UTF-8
  const Decided decided(model.graph(), {.partitions = 3, .memory_weight = 1.0});
  const std::string svg = partition_tree_svg(decided.view);
  EXPECT_THAT(svg, HasSubstr("a&lt;b&gt;&amp;&quot;c&quot;"));
  EXPECT_THAT(svg, HasSubstr("x&lt;y"));
  EXPECT_THAT(svg, HasSubstr("warning: "));
  EXPECT_THAT(svg, Not(HasSubstr("\xff")));
  EXPECT_TRUE(nlohmann::json::accept(partition_tree_json(decided.view)));
  EXPECT_THAT(partition_tree_text(decided.view), HasSubstr("warning: no parameter"));
}

} // namespace
} // namespace tessera::report
