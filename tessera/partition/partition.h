#pragma once

#include <map>
#include <string>
#include <vector>

#include "tessera/graph/model_graph.h"

namespace tessera::partitioning {

struct Options {
  int partitions = 1; // pipeline_parallel_degree
  double memory_weight = 0.8; // alpha of the cost, 0 to 1
  bool auto_partition = true;
  /// Manual mode: where modules go that nothing else places.
  int default_partition = 0;
  /// Manual mode: module path -> partition, before the module's own
  /// manual_partition.
  std::map<std::string, int> manual = {};
};

/// What one run of consecutive children was given.
struct Segment {
  int parent = 0; // node whose children these are
  std::vector<int> nodes; // in order of execution
  double cost = 0;
  std::vector<int> devices; // none: they stay on the device of the parent
};

struct Result {
  /// Module path -> pp rank, for all modules; what a Plan holds.
  std::map<std::string, int> partition;
  graph::ModuleTree tree;
  std::vector<int> partition_of_node;
  std::vector<double> cost; // per node, normalized: the root's is 1
  /// Per partition: the own cost of the nodes that run there. Adds up to 1.
  std::vector<double> total;
  /// Automatic mode: every decision, in the order in which it was taken.
  std::vector<Segment> segments;
  std::vector<std::string> warnings;
};

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
