#pragma once

#include <vector>

#include "tessera/graph/model_graph.h"

namespace tessera::cost {

struct CostOptions {
  /// alpha of equation (1), 0 to 1: the weight of memory; computation has 1 - alpha.
  double memory_weight = 0.8;
};

/// The share of each node of a module tree in its model.
struct NodeCosts {
  /// c(n) of the node and everything below it. The root has 1, and no node costs less
  /// than its children together.
  std::vector<double> subtree;
  /// The load of the node's own modules on the rank that runs them. The values add up to 1.
  std::vector<double> own;
};

/// Returns the normalized cost of every node of the tree:
///
///   c(n) = alpha * w(n) / w(root) + (1 - alpha) * psi(n) / psi(root)
///
/// w: bytes of parameters and of activations in the sub-tree of n.
/// psi: forward seconds of the sub-tree if the graph is timed, otherwise the number of
/// modules below n. `own` divides the same totals among the nodes: bytes and seconds
/// without those of children; in an untimed graph each module below the root counts
/// 1, because a layer is work on the rank that runs it and not on its parent's.
/// If the root has none of one quantity (an untraced model without parameters, a
/// root without children), the other one decides alone.
///
/// Throws: ConfigError when memory_weight is outside 0 .. 1.
/// Source: Karakus et al. 2021, appendix C.3, equation (1). In the paper C(n) sums (1)
/// over all modules of a sub-tree, although w and psi of each already include its
/// submodules, so that deep modules would count once for every level above them.
/// Here every byte and every second counts once; otherwise the totals of the
/// partitions could not add up to 1, as those of figures 9 and 10 do.
NodeCosts node_costs(
    const graph::ModelGraph& graph,
    const graph::ModuleTree& tree,
    const CostOptions& options);

} // namespace tessera::cost
