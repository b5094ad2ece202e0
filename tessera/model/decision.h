#pragma once

#include "tessera/graph/model_graph.h"
#include "tessera/partition/partition.h"

namespace tessera::model {

/// What rank 0 decided the partition from, for reports.
struct Decision {
  graph::ModelGraph graph;
  partitioning::Result result;
};

} // namespace tessera::model
