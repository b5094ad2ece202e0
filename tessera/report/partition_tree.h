#pragma once

#include <string>
#include <vector>

#include "tessera/graph/model_graph.h"

namespace tessera::report {

/// The partition that the writers below show. It holds references: the graph and the decision must
/// outlive it.
struct PartitionView {
  const graph::ModelGraph& graph;
  const graph::ModuleTree& tree;
  const std::vector<double>& cost; // per node, normalized
  const std::vector<int>& partition; // per node
  const std::vector<double>& total; // per partition, adds up to 1
  const std::vector<std::string>& warnings;
  double memory_weight = 0;
};

/// One box of the drawing: a node, or a run of numbered siblings on one partition ("layers[0:6]").
/// A box whose whole sub-tree runs on its partition is drawn without the sub-tree, as in figures 9
/// and 10 of Karakus et al. 2021.
struct PartitionBox {
  std::string label; // path below the parent's; "" for the root
  std::string type; // class name, of the first module
  double cost = 0;
  int partition = 0;
  int modules = 0; // in the whole sub-tree
  int depth = 0;
  std::vector<int> children; // indices of boxes
};

/// Returns the boxes in pre-order; [0] is the root. With `every_node` nothing is collapsed.
std::vector<PartitionBox> partition_boxes(const PartitionView& view, bool every_node = false);

/// Returns the tree with cost and partition of every box, then a bar for each partition. With
/// `colour`, ANSI sequences distinguish the partitions.
std::string
partition_tree_text(const PartitionView& view, bool every_node = false, bool colour = false);

/// Returns {"model", "pipeline_parallel_degree", "memory_weight", "nodes": [{"path", "cost",
/// "partition", "modules"}], "totals": [...], "warnings": [...]} with all nodes in order of
/// registration. "path" is the path of the node's first module; "modules" are the paths of all its
/// modules (several where they share parameters).
std::string partition_tree_json(const PartitionView& view);

/// Returns the same drawing as one self-contained SVG file.
std::string partition_tree_svg(const PartitionView& view);

} // namespace tessera::report
