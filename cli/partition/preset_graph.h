#pragma once

#include <string>
#include <vector>

#include "tessera/graph/model_graph.h"

namespace tessera::cli {

/// A model that commands know by name.
struct Preset {
  std::string name;
  std::string summary; // family, size, source
};

/// All presets, in the order in which `--list` prints them.
const std::vector<Preset>& presets();

/// The traced graph of a preset at its own sample size (models/presets.h),
/// without allocating its weights: order and sizes, no seconds.
/// Throws: ConfigError that names the nearest preset when there is none of this
/// name.
graph::ModelGraph graph_of_preset(const std::string& name);

/// The same as the first rank of a tensor-parallel group would hold it, and
/// lines that say what was replaced and why the rest was not.
struct DistributedGraph {
  graph::ModelGraph graph;
  std::vector<std::string> replaced;
};
DistributedGraph
graph_of_preset(const std::string& name, int tensor_parallel_degree, const std::string& optimize);

} // namespace tessera::cli
