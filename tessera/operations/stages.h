#pragma once

#include <vector>

#include "tessera/operations/graph.h"
#include "tessera/operations/units.h"

namespace tessera::operations {

/// What a part runs in one go: a visit of its device. A forward is a row of stages, each after all
/// that it needs, so there is no circle between stages; one part may have several.
struct Stage {
  int part = 0;
  std::vector<int> operations; // in an order in which they can run
  std::vector<int> takes; // tensors from other stages, or given to the model; ascending
  std::vector<int> gives; // tensors that other stages read or the model returns; ascending
};

/// Orders the operations so that a part runs as much as it can before the next begins: of the parts
/// that could, the one with most to run. `part_of_operation` keeps units together.
std::vector<Stage>
make_stages(const Graph& graph, const Units& units, const std::vector<int>& part_of_operation);

} // namespace tessera::operations
