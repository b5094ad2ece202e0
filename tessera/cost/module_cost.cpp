#include "tessera/cost/module_cost.h"

#include <algorithm>
#include <vector>

#include "tessera/base/error.h"

namespace tessera::cost {

namespace {

// A node has a quantity of its own, and one with everything below it.
struct Amounts {
  std::vector<double> own;
  std::vector<double> subtree;
};

// Adds children to parents. Parents precede their children, so going backwards every
// node is complete before it is added to its parent.
std::vector<double> sum_subtrees(const graph::ModuleTree& tree, std::vector<double> values) {
  for (std::size_t n = tree.nodes.size(); n-- > 1;) {
    values[tree.nodes[n].parent] += values[n];
  }
  return values;
}

// Computes w. Each parameter is counted once, at the one node that holds it. Doubles
// are exact for whole bytes up to 8 PiB.
Amounts memory_bytes(const graph::ModelGraph& graph, const graph::ModuleTree& tree) {
  Amounts bytes;
  bytes.own.assign(tree.nodes.size(), 0);
  std::vector<bool> counted(graph.parameters.size(), false);
  for (std::size_t i = 0; i < graph.modules.size(); ++i) {
    double& at = bytes.own[tree.node_of_module[i]];
    at += static_cast<double>(graph.modules[i].activation_bytes);
    for (const int parameter : graph.modules[i].parameters) {
      if (!counted[parameter]) {
        counted[parameter] = true;
        at += static_cast<double>(graph.parameters[parameter].bytes);
      }
    }
  }
  bytes.subtree = sum_subtrees(tree, bytes.own);
  return bytes;
}

// Computes psi of a timed graph. The tracer's seconds include submodules; each module
// gets the difference, which is summed again along the node tree. That tree differs
// from the module tree where nodes span levels.
Amounts forward_seconds(const graph::ModelGraph& graph, const graph::ModuleTree& tree) {
  std::vector<double> inclusive(graph.modules.size(), 0);
  Amounts seconds;
  seconds.own.assign(tree.nodes.size(), 0);
  for (std::size_t i = graph.modules.size(); i-- > 0;) {
    const graph::Module& module = graph.modules[i];
    double below = 0;
    for (const int child : module.children) {
      below += inclusive[child];
    }
    // A container that is never called takes the time of its children.
    inclusive[i] = module.calls > 0 ? module.forward_seconds : below;
    // The difference can be negative: by the noise of the clock, or because another
    // module called the children.
    seconds.own[tree.node_of_module[i]] += std::max(0.0, inclusive[i] - below);
  }
  seconds.subtree = sum_subtrees(tree, seconds.own);
  return seconds;
}

// Computes psi of an untimed graph: the number of modules below a node.
Amounts descendants(const graph::ModuleTree& tree) {
  Amounts modules;
  for (const graph::ModuleNode& node : tree.nodes) {
    modules.own.push_back(static_cast<double>(node.modules.size()));
  }
  modules.subtree = sum_subtrees(tree, modules.own);
  for (std::size_t n = 0; n < tree.nodes.size(); ++n) {
    modules.subtree[n] -= modules.own[n];
  }
  modules.own[0] = 0; // the root is below nothing
  return modules;
}

} // namespace

NodeCosts node_costs(
    const graph::ModelGraph& graph,
    const graph::ModuleTree& tree,
    const CostOptions& options) {
  double alpha = options.memory_weight;
  if (!(alpha >= 0 && alpha <= 1)) {
    throw ConfigError(
        str("memory_weight: found ", alpha, "; expected 0 (only computation) to 1 (only memory)"));
  }
  const Amounts w = memory_bytes(graph, tree);
  const Amounts psi = graph.timed ? forward_seconds(graph, tree) : descendants(tree);
  const std::size_t count = tree.nodes.size();
  NodeCosts costs{std::vector<double>(count), std::vector<double>(count)};
  if (w.subtree[0] == 0 && psi.subtree[0] == 0) {
    costs.own[0] = 1; // nothing has a cost, so the root gets all of it
  } else {
    if (w.subtree[0] == 0) {
      alpha = 0;
    } else if (psi.subtree[0] == 0) {
      alpha = 1;
    }
    const double per_byte = alpha == 0 ? 0 : alpha / w.subtree[0];
    const double per_psi = alpha == 1 ? 0 : (1 - alpha) / psi.subtree[0];
    for (std::size_t n = 0; n < count; ++n) {
      costs.subtree[n] = per_byte * w.subtree[n] + per_psi * psi.subtree[n];
      costs.own[n] = per_byte * w.own[n] + per_psi * psi.own[n];
    }
  }
  costs.subtree[0] = 1; // exactly, however the shares round
  return costs;
}

} // namespace tessera::cost
