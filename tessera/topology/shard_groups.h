#pragma once

#include <vector>

#include "tessera/topology/rank_layout.h"

namespace tessera::topology {

/// The two groups of a rank under sharded data parallelism, as ascending global ranks.
struct ShardGroups {
  /// Together they hold one copy of what is sharded.
  std::vector<int> shards;
  /// They hold the same part of it.
  std::vector<int> replicas;
  /// They hold the same part of what all ranks of a TP_GROUP hold; without tensor parallelism
  /// `replicas`.
  std::vector<int> equal_replicas;
};

/// Every RDP group is cut into chunks of `degree` consecutive members; ranks at one position of
/// their chunks are replicas of each other. It does not communicate.
/// Throws: ConfigError when `degree` does not divide the RDP group.
/// Source: the library's documentation, sharded data parallelism with tensor parallelism.
ShardGroups shard_groups(const RankLayout& layout, int degree, int rank);

} // namespace tessera::topology
