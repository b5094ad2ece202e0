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
  /// In manual mode, the partition of modules that nothing else places.
  int default_partition = 0;
  /// In manual mode, module path -> partition; it takes precedence over the module's own
  /// manual_partition.
  std::map<std::string, int> manual = {};
};

/// A run of consecutive children, and the devices it was given.
struct Segment {
  int parent = 0; // the node whose children form the run
  std::vector<int> nodes; // in order of execution
  double cost = 0;
  std::vector<int> devices; // empty when the run stays on the parent's device
};

struct Result {
  /// Module path -> pp rank, for all modules; a Plan holds it.
  std::map<std::string, int> partition;
  graph::ModuleTree tree;
  std::vector<int> partition_of_node;
  std::vector<double> cost; // per node, normalized: the root's is 1
  /// For each partition, the cost of the nodes that run there, without their children. The values
  /// add up to 1.
  std::vector<double> total;
  /// In automatic mode, every decision, in the order in which it was taken.
  std::vector<Segment> segments;
  std::vector<std::string> warnings;
};

} // namespace tessera::partitioning
