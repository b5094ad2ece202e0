#pragma once

#include <string>
#include <vector>

#include "tessera/comm/collective.h"
#include "tessera/comm/tags.h"
#include "tessera/comm/world.h"

namespace tessera::comm {

/// Checks the arguments of World::new_group: ascending ranks of the world,
/// `world.rank()` among them. Throws: CommError.
GroupInfo
make_group_info(const World& world, const std::string& name, const std::vector<int>& ranks);

/// Throws: CommError unless all of `info.ranks` make the same group; each wait
/// is bounded by the world's timeout. Collective over `info.ranks`.
void check_same_group(World& world, const GroupInfo& info);

/// Throws: CommError with `error`, or with the first that another rank gave;
/// returns when all of `ranks` gave "". Collective over `ranks` (ascending).
void throw_first_error(
    World& world,
    const std::vector<int>& ranks,
    const std::string& error,
    int tag);

/// Throws: CommError when `peer` is no rank of the world or `tag` is negative.
void check_message(const World& world, int peer, int tag);

/// Throws: ConfigError unless same_node is "auto", "shm" or "mpi" and the
/// timeout is positive.
void check_options(const WorldOptions& options);

} // namespace tessera::comm
