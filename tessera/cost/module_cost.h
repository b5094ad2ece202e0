#pragma once

#include <vector>

#include "tessera/graph/model_graph.h"

namespace tessera::cost {

struct CostOptions {
  /// alpha of equation (1), 0 to 1: how much memory counts against computation.
  double memory_weight = 0.8;
};

/// Normalized cost of every node of the tree, its sub-tree included; the
/// root's is 1 and no node costs less than its children together:
///
///   c(n) = alpha * w(n) / w(root) + (1 - alpha) * psi(n) / psi(root)
///
/// w: bytes of parameters and of activations in the sub-tree of n.
/// psi: forward seconds of the sub-tree where the graph is timed, otherwise the
/// number of modules below n.
/// A quantity of which the root has nothing (an untraced model without
/// parameters, a root without children) takes no part; the other one then
/// decides alone.
///
/// Throws: ConfigError when memory_weight is outside 0 .. 1.
/// Source: Karakus et al. 2021, appendix C.3, equation (1). There C(n) sums (1)
/// over all modules of a sub-tree although w and psi of each already include
/// its submodules, so that deep modules would count once for every level above
/// them. Here every byte and every second counts once: this is what makes the
/// per-partition totals add up to 1, as those of figures 9 and 10 do.
std::vector<double> node_costs(
    const graph::ModelGraph& graph,
    const graph::ModuleTree& tree,
    const CostOptions& options);

/// The part of every node's cost that is not in its children; adds up to 1.
std::vector<double> own_costs(
    const graph::ModuleTree& tree,
    const std::vector<double>& node_costs);

} // namespace tessera::cost
