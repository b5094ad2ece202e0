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

} // namespace tessera::partitioning
