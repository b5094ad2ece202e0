#pragma once

#include <memory>

#include "tessera/comm/engine.h"
#include "tessera/comm/world.h"

namespace tessera::comm::shm {

/// The shared-memory engine of a group whose ranks are processes of one node:
/// the first rank makes the memory and the others map it.
/// Collective over the group. Throws: CommError on all ranks when one cannot
/// map it.
std::unique_ptr<Engine> make_shm_engine(World& world, const GroupInfo& info);

} // namespace tessera::comm::shm
