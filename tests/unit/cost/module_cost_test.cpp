#include "tessera/cost/module_cost.h"

#include <limits>
#include <numeric>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

#include "tests/unit/graph/graph_builder.h"

namespace tessera::cost {
namespace {

using graph::build_module_tree;
using graph::GraphBuilder;
using testing::DoubleNear;
using testing::ElementsAre;

std::vector<double> costs_of(GraphBuilder& model, double memory_weight) {
  return node_costs(
             model.graph(), build_module_tree(model.graph()), {.memory_weight = memory_weight})
      .subtree;
}

auto near(double value) {
  return DoubleNear(value, 1e-12);
}

// root { a { b, c }, d }: parameters of 10, 20, 30 and 40 elements.
GraphBuilder small_model() {
  GraphBuilder model;
  const int a = model.leaf(0, "a", 10);
  model.leaf(a, "b", 20);
  model.leaf(a, "c", 30);
  model.leaf(0, "d", 40);
  return model;
}

TEST(NodeCosts, MemoryAloneIsTheShareOfBytes) {
  GraphBuilder model = small_model();
  EXPECT_THAT(costs_of(model, 1.0), ElementsAre(near(1), near(.6), near(.2), near(.3), near(.4)));
  model[4].activation_bytes = 400; // as much again as all parameters
  EXPECT_THAT(costs_of(model, 1.0), ElementsAre(near(1), near(.3), near(.1), near(.15), near(.7)));
}

TEST(NodeCosts, UntimedComputationIsTheNumberOfDescendants) {
  GraphBuilder model = small_model();
  EXPECT_THAT(costs_of(model, 0.0), ElementsAre(near(1), near(.5), near(0), near(0), near(0)));
}

TEST(NodeCosts, MemoryWeightMixesBoth) {
  GraphBuilder model = small_model();
  EXPECT_THAT(
      costs_of(model, 0.2),
      ElementsAre(near(1), near(.2 * .6 + .8 * .5), near(.04), near(.06), near(.08)));
}

TEST(NodeCosts, TimedComputationIsForwardSeconds) {
  GraphBuilder model = small_model();
  model.graph().timed = true;
  const std::vector<double> seconds = {10, 6, 2, 3, 4};
  for (int i = 0; i < 5; ++i) {
    model[i].calls = 1;
    model[i].forward_seconds = seconds[i];
  }
  EXPECT_THAT(costs_of(model, 0.0), ElementsAre(near(1), near(.6), near(.2), near(.3), near(.4)));
  // A list that is never called has the time of its layers, and its parent
  // does not count that time as its own.
  model[1].calls = 0;
  model[1].forward_seconds = 0;
  const auto tree = build_module_tree(model.graph());
  const auto costs = node_costs(model.graph(), tree, {.memory_weight = 0.0});
  EXPECT_THAT(costs.subtree, ElementsAre(near(1), near(.5), near(.2), near(.3), near(.4)));
  EXPECT_THAT(costs.own, ElementsAre(near(.1), near(0), near(.2), near(.3), near(.4)));
}

TEST(NodeCosts, SharedParametersCountOnceAndAtTheirNode) {
  GraphBuilder model;
  const int encoder = model.add(0, "encoder");
  const int embedding = model.leaf(encoder, "embedding", 50);
  model.leaf(encoder, "layer", 50);
  const int head = model.add(0, "head");
  model.share(head, 0);
  model[embedding].activation_bytes = 100;
  model[head].activation_bytes = 100;
  // Nodes: root, encoder, {embedding, head} below the root, layer.
  const auto tree = build_module_tree(model.graph());
  const auto memory = node_costs(model.graph(), tree, {.memory_weight = 1});
  EXPECT_THAT(memory.subtree, ElementsAre(near(1), near(1. / 3), near(2. / 3), near(1. / 3)));
  const auto modules = node_costs(model.graph(), tree, {.memory_weight = 0});
  EXPECT_THAT(modules.subtree, ElementsAre(near(1), near(.25), near(0), near(0)));
  // Four modules below the root, two of them in the tied node.
  EXPECT_THAT(modules.own, ElementsAre(near(0), near(.25), near(.5), near(.25)));
}

TEST(NodeCosts, WhatTheRootHasNothingOfTakesNoPart) {
  GraphBuilder alone;
  EXPECT_THAT(costs_of(alone, 0.5), ElementsAre(1));
  alone.parameter(0, "w", 3);
  EXPECT_THAT(costs_of(alone, 0.0), ElementsAre(1));
  GraphBuilder bare; // neither parameters nor activations
  const int a = bare.add(0, "a");
  bare.add(a, "b");
  EXPECT_THAT(costs_of(bare, 1.0), ElementsAre(near(1), near(.5), near(0)));
}

TEST(NodeCosts, MemoryWeightOutsideItsRangeIsRefused) {
  GraphBuilder model = small_model();
  for (const double weight : {-0.1, 1.5, std::numeric_limits<double>::quiet_NaN()}) {
    try {
      costs_of(model, weight);
      FAIL() << weight << " was accepted";
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("memory_weight: found"));
    }
  }
}

TEST(NodeCosts, RandomGraphsAreSuperAdditiveAndAddUp) {
  std::mt19937 random(3);
  for (int round = 0; round < 500; ++round) {
    const auto graph = graph::random_graph(random, 1 + round % 60);
    const auto tree = build_module_tree(graph);
    const auto costs = node_costs(graph, tree, {.memory_weight = (round % 11) / 10.0});
    ASSERT_EQ(costs.subtree.size(), tree.nodes.size());
    EXPECT_EQ(costs.subtree[0], 1);
    for (std::size_t n = 0; n < tree.nodes.size(); ++n) {
      double below = 0;
      for (const int child : tree.nodes[n].children) {
        below += costs.subtree[child];
      }
      EXPECT_GE(costs.subtree[n], below - 1e-12);
      EXPECT_GE(costs.own[n], 0);
    }
    EXPECT_NEAR(std::accumulate(costs.own.begin(), costs.own.end(), 0.0), 1, 1e-9);
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
}

} // namespace
} // namespace tessera::cost
