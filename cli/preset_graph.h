#pragma once

#include <string>

#include "tessera/graph/model_graph.h"

namespace tessera::cli {

/// The traced graph of a model of models/presets.h, without allocating its
/// weights.
/// Throws: ConfigError that names the nearest preset when there is none of this
/// name.
graph::ModelGraph graph_of_preset(const std::string& name);

} // namespace tessera::cli
