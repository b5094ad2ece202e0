#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/comm/collective.h"
#include "tessera/comm/world.h"

namespace tessera::comm {

/// Tags from here on are the library's own; users' are 0 to this.
inline constexpr int kFirstOwnTag = 1 << 24;
inline constexpr int kObjectCollectiveTag = kFirstOwnTag;
inline constexpr int kGroupSetupTag = kFirstOwnTag + 1;

/// Checks the arguments of World::new_group: ascending ranks of the world,
/// `world.rank()` among them. Throws: CommError.
GroupInfo
make_group_info(const World& world, const std::string& name, const std::vector<int>& ranks);

/// Throws: CommError when `peer` is no rank of the world or `tag` is negative.
void check_message(const World& world, int peer, int tag);

/// Throws: ConfigError unless same_node is "auto", "shm" or "mpi" and the
/// timeout is positive.
void check_options(const WorldOptions& options);

/// A number that two runs hardly share.
std::uint64_t draw_nonce();

} // namespace tessera::comm
