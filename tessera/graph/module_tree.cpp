#include <algorithm>
#include <limits>
#include <numeric>
#include <vector>

#include "tessera/graph/model_graph.h"

namespace tessera::graph {

namespace {

constexpr int kNever = std::numeric_limits<int>::max();

// Disjoint sets of modules (union-find); the representative is the smallest module.
class Components {
 public:
  explicit Components(std::size_t modules) : link_(modules) {
    std::iota(link_.begin(), link_.end(), 0);
  }

  int find(int module) {
    while (link_[module] != module) {
      link_[module] = link_[link_[module]];
      module = link_[module];
    }
    return module;
  }

  void join(int a, int b) {
    a = find(a);
    b = find(b);
    link_[std::max(a, b)] = std::min(a, b);
  }

 private:
  std::vector<int> link_;
};

// Finds the connected components of the graph whose vertices are modules and
// parameters, with an edge where a module holds a parameter.
Components share_parameters(const ModelGraph& graph) {
  Components components(graph.modules.size());
  std::vector<int> first_holder(graph.parameters.size(), -1);
  for (std::size_t i = 0; i < graph.modules.size(); ++i) {
    for (const int parameter : graph.modules[i].parameters) {
      if (first_holder[parameter] < 0) {
        first_holder[parameter] = static_cast<int>(i);
      }
      components.join(first_holder[parameter], static_cast<int>(i));
    }
  }
  return components;
}

// Returns when each module first takes part in a forward: at its own first call or,
// if it is never called itself, at the first call below it.
std::vector<int> first_use(const ModelGraph& graph) {
  std::vector<int> use(graph.modules.size(), kNever);
  for (std::size_t i = graph.modules.size(); i-- > 0;) {
    const Module& module = graph.modules[i];
    if (module.first_call >= 0) {
      use[i] = module.first_call;
    } else {
      for (const int child : module.children) {
        use[i] = std::min(use[i], use[child]);
      }
    }
  }
  return use;
}

void order_by_execution(const ModelGraph& graph, ModuleTree& tree) {
  const std::vector<int> use_of_module = first_use(graph);
  std::vector<int> use(tree.nodes.size(), kNever);
  for (std::size_t n = 0; n < tree.nodes.size(); ++n) {
    for (const int module : tree.nodes[n].modules) {
      use[n] = std::min(use[n], use_of_module[module]);
    }
  }
  for (ModuleNode& node : tree.nodes) {
    // A stable sort: children with equal first use keep the order of registration.
    std::stable_sort(node.children.begin(), node.children.end(), [&use](int a, int b) {
      return use[a] < use[b];
    });
  }
}

} // namespace

ModuleTree build_module_tree(const ModelGraph& graph) {
  validate(graph);
  Components components = share_parameters(graph);
  ModuleTree tree;
  tree.node_of_module.assign(graph.modules.size(), -1);
  for (std::size_t i = 0; i < graph.modules.size(); ++i) {
    const int first = components.find(static_cast<int>(i));
    if (first == static_cast<int>(i)) {
      tree.node_of_module[i] = static_cast<int>(tree.nodes.size());
      tree.nodes.emplace_back();
    } else {
      tree.node_of_module[i] = tree.node_of_module[first];
    }
    tree.nodes[tree.node_of_module[i]].modules.push_back(static_cast<int>(i));
  }
  for (std::size_t n = 1; n < tree.nodes.size(); ++n) {
    // The node of every module's parent is a candidate. The parent of the smallest
    // module is in a smaller node, so the minimum is smaller than n, and there is no
    // cycle even if two components own each other's modules.
    int parent = static_cast<int>(n);
    for (const int module : tree.nodes[n].modules) {
      parent = std::min(parent, tree.node_of_module[graph.modules[module].parent]);
    }
    tree.nodes[n].parent = parent;
    tree.nodes[parent].children.push_back(static_cast<int>(n));
  }
  order_by_execution(graph, tree);
  return tree;
}

} // namespace tessera::graph
