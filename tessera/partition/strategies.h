#pragma once

#include <vector>

#include "tessera/partition/result.h"

// The two ways to decide. This header is private to this folder.
namespace tessera::partitioning {

/// Fills partition_of_node and segments from tree and cost.
void partition_automatically(const graph::ModelGraph& graph, int partitions, Result& result);

/// Fills partition_of_node from the tree and what the user wrote. Throws: ConfigError as partition.
void partition_manually(const graph::ModelGraph& graph, const Options& options, Result& result);

} // namespace tessera::partitioning
