#include <set>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/graph/model_graph.h"

#include "tests/unit/graph/graph_builder.h"

namespace tessera::graph {
namespace {

using Indices = std::vector<int>;

// What every reader of a tree relies on.
void expect_tree(const ModelGraph& graph, const ModuleTree& tree) {
  ASSERT_EQ(tree.node_of_module.size(), graph.modules.size());
  std::set<int> modules;
  std::set<int> children;
  for (std::size_t n = 0; n < tree.nodes.size(); ++n) {
    const ModuleNode& node = tree.nodes[n];
    EXPECT_EQ(node.parent == -1, n == 0);
    EXPECT_LT(node.parent, static_cast<int>(n));
    for (const int module : node.modules) {
      EXPECT_TRUE(modules.insert(module).second) << module << " is in two";
      EXPECT_EQ(tree.node_of_module[module], static_cast<int>(n));
    }
    for (const int child : node.children) {
      EXPECT_TRUE(children.insert(child).second) << child << " has two parents";
      EXPECT_EQ(tree.nodes[child].parent, static_cast<int>(n));
    }
  }
  EXPECT_EQ(modules.size(), graph.modules.size());
  EXPECT_EQ(children.size(), tree.nodes.size() - 1);
}

TEST(ModuleTree, WithoutSharingIsTheModuleTree) {
  GraphBuilder model;
  const int a = model.leaf(0, "a", 1);
  const int ab = model.leaf(a, "b", 1);
  const int c = model.add(0, "c");
  const ModuleTree tree = build_module_tree(model.graph());
  expect_tree(model.graph(), tree);
  EXPECT_EQ(tree.node_of_module, (Indices{0, 1, 2, 3}));
  EXPECT_EQ(tree.nodes[0].children, (Indices{a, c}));
  EXPECT_EQ(tree.nodes[a].children, (Indices{ab}));
}

TEST(ModuleTree, TiedEmbeddingIsOneNodeBelowTheRoot) {
  GraphBuilder model;
  const int encoder = model.add(0, "encoder");
  const int embedding = model.leaf(encoder, "embed", 10);
  const int layer = model.leaf(encoder, "layer", 10);
  const int head = model.add(0, "lm_head");
  model.share(head, 0);
  const ModuleTree tree = build_module_tree(model.graph());
  expect_tree(model.graph(), tree);
  ASSERT_EQ(tree.nodes.size(), 4U);
  const int tied = tree.node_of_module[embedding];
  EXPECT_EQ(tree.nodes[tied].modules, (Indices{embedding, head}));
  // Parents are the encoder and the root; the smallest index stays.
  EXPECT_EQ(tree.nodes[tied].parent, 0);
  EXPECT_EQ(tree.nodes[1].children, (Indices{tree.node_of_module[layer]}));
}

TEST(ModuleTree, ComponentsThatOwnEachOtherStayATree) {
  // {x, y.c} owns a module of {y, x.d} and the other way round.
  GraphBuilder model;
  const int inner = model.add(0, "inner");
  const int x = model.leaf(inner, "x", 1);
  const int d = model.leaf(x, "d", 1);
  const int y = model.add(inner, "y");
  model.share(y, 1);
  const int c = model.add(y, "c");
  model.share(c, 0);
  const ModuleTree tree = build_module_tree(model.graph());
  expect_tree(model.graph(), tree);
  ASSERT_EQ(tree.nodes.size(), 4U);
  EXPECT_EQ(tree.nodes[2].modules, (Indices{x, c}));
  EXPECT_EQ(tree.nodes[3].modules, (Indices{d, y}));
  EXPECT_EQ(tree.nodes[2].parent, inner);
  EXPECT_EQ(tree.nodes[3].parent, inner);
}

TEST(ModuleTree, ParameterOfTheRootHeldDeepBelow) {
  GraphBuilder model;
  const int w = model.parameter(0, "w", 3);
  const int a = model.add(0, "a");
  const int b = model.add(a, "b");
  model.share(b, w);
  const int c = model.leaf(b, "c", 1);
  const ModuleTree tree = build_module_tree(model.graph());
  expect_tree(model.graph(), tree);
  EXPECT_EQ(tree.nodes[0].modules, (Indices{0, b}));
  EXPECT_EQ(tree.nodes[tree.node_of_module[a]].parent, 0);
  EXPECT_EQ(tree.nodes[tree.node_of_module[c]].parent, 0);
}

TEST(ModuleTree, ModuleAndItsChildSharing) {
  GraphBuilder model;
  const int a = model.leaf(0, "a", 1);
  const int b = model.add(a, "b");
  model.share(b, 0);
  const ModuleTree tree = build_module_tree(model.graph());
  expect_tree(model.graph(), tree);
  EXPECT_EQ(tree.nodes[1].modules, (Indices{a, b}));
  EXPECT_EQ(tree.nodes[1].parent, 0);
}

TEST(ModuleTree, SharingIsTransitive) {
  GraphBuilder model;
  const int a = model.leaf(0, "a", 1);
  const int b = model.leaf(0, "b", 1);
  const int c = model.add(0, "c");
  model.share(b, 0);
  model.share(c, 1);
  const ModuleTree tree = build_module_tree(model.graph());
  ASSERT_EQ(tree.nodes.size(), 2U);
  EXPECT_EQ(tree.nodes[1].modules, (Indices{a, b, c}));
}

TEST(ModuleTree, ChildrenFollowTheTrace) {
  GraphBuilder model;
  const int late = model.add(0, "late");
  const int never = model.add(0, "never");
  const int list = model.add(0, "list"); // never called, its layers are
  const int layer = model.add(list, "0");
  const int early = model.add(0, "early");
  const int also_never = model.add(0, "also_never");
  model[0].first_call = 0;
  model[late].first_call = 3;
  model[layer].first_call = 2;
  model[early].first_call = 1;
  const ModuleTree tree = build_module_tree(model.graph());
  EXPECT_EQ(tree.nodes[0].children, (Indices{early, list, late, never, also_never}));
}

TEST(ModuleTree, NodeStandsWhereItsFirstModuleIsCalled) {
  GraphBuilder model;
  const int head = model.leaf(0, "head", 1);
  const int body = model.leaf(0, "body", 1);
  const int embedding = model.add(0, "embedding");
  model.share(embedding, 0);
  model[head].first_call = 3;
  model[body].first_call = 2;
  model[embedding].first_call = 1;
  const ModuleTree tree = build_module_tree(model.graph());
  EXPECT_EQ(tree.nodes[0].children, (Indices{1, 2}));
  EXPECT_EQ(tree.nodes[1].modules, (Indices{head, embedding}));
}

TEST(ModuleTree, RandomGraphsAreTreesAndSharersMeet) {
  std::mt19937 random(7);
  for (int round = 0; round < 2000; ++round) {
    const ModelGraph graph = random_graph(random, 1 + round % 60);
    const ModuleTree tree = build_module_tree(graph);
    expect_tree(graph, tree);
    std::vector<int> node_of_parameter(graph.parameters.size(), -1);
    for (std::size_t i = 0; i < graph.modules.size(); ++i) {
      for (const int parameter : graph.modules[i].parameters) {
        int& node = node_of_parameter[parameter];
        EXPECT_TRUE(node == -1 || node == tree.node_of_module[i]);
        node = tree.node_of_module[i];
      }
    }
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
}

TEST(ModuleTree, VeryDeepModelsDoNotExhaustTheStack) {
  GraphBuilder model;
  int module = 0;
  for (int depth = 0; depth < 20000; ++depth) {
    // Paths grow with depth in a real model; here they only must differ.
    const int next = model.add(module, "m");
    model[next].path = std::to_string(depth);
    module = next;
  }
  EXPECT_EQ(build_module_tree(model.graph()).nodes.size(), 20001U);
}

} // namespace
} // namespace tessera::graph
