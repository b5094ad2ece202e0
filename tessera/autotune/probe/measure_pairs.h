#pragma once

#include <vector>

#include "tessera/autotune/probe/pair.h"
#include "tessera/comm/world.h"

namespace tessera::autotune {

struct PairMeasurements {
  std::vector<PairFacts> pairs;
  std::vector<int> unmeasured; // ranks that were left out
};

/// Measures messages between the pairs of ranks that pairs_to_measure() chooses, one pair at a
/// time. The result is on rank 0.
/// Collective over the world. Threads: the main thread.
/// Throws: CommError when a message does not arrive or arrives damaged.
PairMeasurements measure_pairs(comm::World& world, comm::ProcessGroup& group, int most_ranks);

} // namespace tessera::autotune
