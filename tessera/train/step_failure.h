#pragma once

#include <string>

namespace tessera::train {

/// This rank's part of a step has failed: ranks of its TP_GROUP that are, or
/// come, in a collective of a distributed module give it up with `why` in
/// place of waiting for this rank. Without tensor parallelism nothing.
/// Not collective. Threads: that with the baton.
void abandon_collectives(const std::string& why);

/// Makes the collectives of distributed modules usable again after a step that
/// failed on any rank of the DP_GROUP. Collective over the TP_GROUP.
/// Throws: CommError when they failed for another reason, such as a lost rank.
void recover_collectives();

} // namespace tessera::train
