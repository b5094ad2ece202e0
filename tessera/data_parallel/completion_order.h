#pragma once

#include <vector>

#include "tessera/comm/world.h"

namespace tessera::data_parallel {

/// Parameters in the order in which their gradients were complete in a step, by which buckets are
/// filled from then on; all ranks take that of the group's first one. `first_done[i]`: the position
/// of parameter i, negative for one that was never reached, which comes last.
/// Returns the numbers of the parameters. Collective over `control`. Threads: step thread.
std::vector<int> agreed_completion_order(
    comm::World& world,
    const comm::ProcessGroup& control,
    const std::vector<int>& first_done);

} // namespace tessera::data_parallel
