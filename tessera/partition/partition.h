#pragma once

#include "tessera/graph/model_graph.h"
#include "tessera/partition/result.h"

namespace tessera::partitioning {

/// Decides the pp rank of every module. The same graph and options always give
/// the same result, on every rank and machine.
///
/// Automatic: breadth first over the module tree; a node runs on the first of
/// its devices and divides all of them among its children: runs of children of
/// even cost (`split_evenly`), devices in proportion (`allocate_seats`),
/// again within every run that has several devices and several children.
/// Modules that hold no parameter, nor does anything below them, run where
/// their parent does. No run gets more devices than it holds nodes with
/// parameters, and a node leaves its own device to itself where its children
/// can do without: every partition holds a parameter if there are that many
/// nodes with parameters, otherwise a warning says which are empty.
/// Source: Karakus et al. 2021, Algorithms 1 and 2; the limit is ours (there, a
/// single large layer can be given devices that it cannot use).
///
/// Manual: a module goes to Options::manual of its path, else to its own
/// manual_partition, else to where its parent goes, else to default_partition.
///
/// Throws: ConfigError for partitions < 1, memory_weight outside 0 .. 1, a
/// manual index or default_partition outside 0 .. partitions - 1, a path that
/// the model lacks, and for modules that share a parameter but were placed
/// apart (names both and the parameter). PlanError as graph::validate.
Result partition(const graph::ModelGraph& graph, const Options& options);

} // namespace tessera::partitioning
