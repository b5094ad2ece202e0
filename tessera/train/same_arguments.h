#pragma once

#include <cstdint>
#include <vector>

#include "tessera/comm/process_group.h"

namespace tessera::train {

/// Compares the arguments of a step on the ranks of a TP_GROUP, which bring the same samples under
/// `prescaled_batch` and compute a part of each. `digests`: step_arguments' digest_of_argument of
/// each; empty: nothing is compared.
/// Collective over the group, in the step function, so that all ranks learn of an error.
/// Throws: UserError naming the first argument that is not the same on all.
void check_same_arguments(const std::vector<std::uint64_t>& digests, comm::ProcessGroup& group);

} // namespace tessera::train
