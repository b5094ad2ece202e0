#pragma once

// This header is private to this folder.

#include <vector>

#include "tessera/graph/model_graph.h"

namespace tessera::partitioning {

/// Returns, for each node of the tree, how many nodes of its sub-tree hold a parameter.
std::vector<int> count_holders(const graph::ModelGraph& graph, const graph::ModuleTree& tree);

} // namespace tessera::partitioning
