#pragma once

#include <cstddef>
#include <vector>

#include "tessera/comm/world.h"

namespace tessera::sharding {

/// The ranks of a shard group, as positions in the group, by the memory that they share.
struct ShardNodes {
  std::vector<std::vector<int>> members; // of each node, ascending
  std::size_t own = 0; // which of them is this rank's

  bool is_one() const {
    return members.size() == 1;
  }
  /// Returns this rank's position among the members of its node.
  int position(int rank_in_group) const;
};

/// By host names; with same_node_backend "mpi" each rank is a node of its own. `ranks`: of the
/// group, ascending global ones. Not collective.
ShardNodes shard_nodes(const comm::World& world, const std::vector<int>& ranks);

} // namespace tessera::sharding
