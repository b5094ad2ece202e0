#include "tessera/cost/module_cost.h"

#include <algorithm>
#include <cstdint>

#include "tessera/base/error.h"

namespace tessera::cost {

namespace {

// Adds to every node what its children have. Parents stand before children, so
// the last node is complete first.
template <typename T>
void sum_subtrees(const graph::ModuleTree& tree, std::vector<T>& values) {
  for (std::size_t n = tree.nodes.size(); n-- > 1;) {
    values[tree.nodes[n].parent] += values[n];
  }
}

// w: parameters are counted at the node that holds them, which is one only.
std::vector<double> memory_bytes(
    const graph::ModelGraph& graph,
    const graph::ModuleTree& tree) {
  std::vector<std::int64_t> bytes(tree.nodes.size(), 0);
  std::vector<bool> counted(graph.parameters.size(), false);
  for (std::size_t i = 0; i < graph.modules.size(); ++i) {
    std::int64_t& at = bytes[tree.node_of_module[i]];
    at += graph.modules[i].activation_bytes;
    for (const int parameter : graph.modules[i].parameters) {
      if (!counted[parameter]) {
        counted[parameter] = true;
        at += graph.parameters[parameter].bytes;
      }
    }
  }
  sum_subtrees(tree, bytes);
  return {bytes.begin(), bytes.end()};
}

// psi of a timed graph. The tracer's seconds include submodules; their
// difference is attributed to each module and summed again along the node
// tree, which differs from the module tree where nodes span levels.
std::vector<double> forward_seconds(
    const graph::ModelGraph& graph,
    const graph::ModuleTree& tree) {
  const std::size_t count = graph.modules.size();
  std::vector<double> inclusive(count, 0);
  std::vector<double> seconds(tree.nodes.size(), 0);
  for (std::size_t i = count; i-- > 0;) {
    const graph::Module& module = graph.modules[i];
    double below = 0;
    for (const int child : module.children) {
      below += inclusive[child];
    }
    // A container that is never called takes the time of what it holds.
    inclusive[i] = module.calls > 0 ? module.forward_seconds : below;
    // Below zero by the clock's noise, or because something else called the
    // children.
    seconds[tree.node_of_module[i]] += std::max(0.0, inclusive[i] - below);
  }
  sum_subtrees(tree, seconds);
  return seconds;
}

// psi of an untimed graph: the modules below a node.
std::vector<double> descendants(const graph::ModuleTree& tree) {
  std::vector<double> modules(tree.nodes.size());
  for (std::size_t n = 0; n < tree.nodes.size(); ++n) {
    modules[n] = static_cast<double>(tree.nodes[n].modules.size());
  }
  sum_subtrees(tree, modules);
  for (std::size_t n = 0; n < tree.nodes.size(); ++n) {
    modules[n] -= static_cast<double>(tree.nodes[n].modules.size());
  }
  return modules;
}

} // namespace

std::vector<double> node_costs(
    const graph::ModelGraph& graph,
    const graph::ModuleTree& tree,
    const CostOptions& options) {
  double alpha = options.memory_weight;
  if (!(alpha >= 0 && alpha <= 1)) {
    throw ConfigError(
        str("memory_weight: found ",
            alpha,
            "; expected 0 (only computation) to 1 (only memory)"));
  }
  const std::vector<double> w = memory_bytes(graph, tree);
  const std::vector<double> psi =
      graph.timed ? forward_seconds(graph, tree) : descendants(tree);
  if (w[0] == 0) {
    alpha = 0;
  } else if (psi[0] == 0) {
    alpha = 1;
  }
  std::vector<double> costs(tree.nodes.size(), 0);
  for (std::size_t n = 0; n < costs.size(); ++n) {
    costs[n] = (w[0] == 0 ? 0 : alpha * (w[n] / w[0])) +
               (psi[0] == 0 ? 0 : (1 - alpha) * (psi[n] / psi[0]));
  }
  // Exactly, whatever alpha rounds to; also when there is nothing to weigh.
  costs[0] = 1;
  return costs;
}

std::vector<double> own_costs(
    const graph::ModuleTree& tree,
    const std::vector<double>& node_costs) {
  std::vector<double> own = node_costs;
  for (std::size_t n = 1; n < tree.nodes.size(); ++n) {
    own[tree.nodes[n].parent] -= node_costs[n];
  }
  for (double& cost : own) {
    cost = std::max(0.0, cost); // what remains below zero is rounding
  }
  return own;
}

} // namespace tessera::cost
