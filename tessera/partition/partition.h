#pragma once

#include "tessera/graph/model_graph.h"
#include "tessera/partition/result.h"

namespace tessera::partitioning {

/// Decides the pp rank of every module. The same graph and options always give the same result, on
/// every rank and machine.
///
/// Automatic mode walks the module tree breadth first. A node runs on the first of its devices and
/// divides all of them among its children: it forms runs of children of even cost (`split_evenly`)
/// and gives them devices in proportion (`allocate_seats`), then repeats this inside every run that
/// has several devices and several children. A module runs where its parent does when neither it
/// nor anything below it holds a parameter. No run gets more devices than it has nodes with
/// parameters, and a node keeps its own device for itself where its children do not need it: every
/// partition then holds a parameter if there are that many nodes with parameters, and otherwise a
/// warning names the empty ones.
/// Source: Karakus et al. 2021, Algorithms 1 and 2. The limit is ours: there, a single large layer
/// can be given devices that it cannot use.
///
/// Manual mode places a module by the entry of its path in Options::manual, else by its own
/// manual_partition, else with its parent, else by default_partition.
///
/// Throws: ConfigError for partitions < 1, memory_weight outside 0 .. 1, a manual index or
/// default_partition outside 0 .. partitions - 1, a path that the model lacks, and modules that
/// share a parameter but were placed apart (it names both and the parameter). PlanError as
/// graph::validate.
Result partition(const graph::ModelGraph& graph, const Options& options);

} // namespace tessera::partitioning
