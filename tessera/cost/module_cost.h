#pragma once

#include <vector>

#include "tessera/graph/model_graph.h"

namespace tessera::cost {

struct CostOptions {
  /// alpha of equation (1), 0 to 1: how much memory counts against computation.
  double memory_weight = 0.8;
};

/// Shares of a model per node of its module tree.
struct NodeCosts {
  /// c(n): the node and everything below it; the root's is 1, and no node
  /// costs less than its children together.
  std::vector<double> subtree;
  /// The load of the node's own modules where they run; adds up to 1.
  std::vector<double> own;
};

/// Normalized cost of every node of the tree:
///
///   c(n) = alpha * w(n) / w(root) + (1 - alpha) * psi(n) / psi(root)
///
/// w: bytes of parameters and of activations in the sub-tree of n.
/// psi: forward seconds of the sub-tree where the graph is timed, otherwise the
/// number of modules below n. `own` divides the same totals: bytes and seconds
/// without those of children, and untimed every module below the root as one
/// (a layer is work where the layer runs, not where its parent does).
/// A quantity of which the root has nothing (an untraced model without
/// parameters, a root without children) takes no part; the other one then
/// decides alone.
///
/// Throws: ConfigError when memory_weight is outside 0 .. 1.
/// Source: Karakus et al. 2021, appendix C.3, equation (1). There C(n) sums (1)
/// over all modules of a sub-tree although w and psi of each already include
/// its submodules, so that deep modules would count once for every level above
/// them. Here every byte and every second counts once: only so can totals per
/// partition add up to 1, as those of figures 9 and 10 do.
NodeCosts node_costs(
    const graph::ModelGraph& graph,
    const graph::ModuleTree& tree,
    const CostOptions& options);

} // namespace tessera::cost
