#include "tessera/topology/shard_groups.h"

#include "tessera/base/error.h"

namespace tessera::topology {

ShardGroups shard_groups(const RankLayout& layout, int degree, int rank) {
  const std::vector<int> members = layout.members(Group::kRDP, rank);
  const int count = static_cast<int>(members.size());
  if (degree < 1 || count % degree != 0) {
    throw ConfigError(
        str("sharded_data_parallel_degree ",
            degree,
            " does not divide the ",
            count,
            " replicas of the model; write a divisor of ",
            count));
  }
  const int position = layout.rank_in(Group::kRDP, rank);
  ShardGroups groups;
  for (int i = 0; i < count; ++i) {
    if (i / degree == position / degree) {
      groups.shards.push_back(members[i]);
    }
    if (i % degree == position % degree) {
      groups.replicas.push_back(members[i]);
    }
  }
  for (const int other : layout.members(Group::kDP, rank)) {
    if (layout.rank_in(Group::kRDP, other) % degree == position % degree) {
      groups.equal_replicas.push_back(other);
    }
  }
  return groups;
}

} // namespace tessera::topology
