#include "tessera/sharding/shard_nodes.h"

#include <algorithm>
#include <string>

#include "tessera/base/error.h"

namespace tessera::sharding {

int ShardNodes::position(int rank_in_group) const {
  const std::vector<int>& node = members[own];
  return static_cast<int>(std::find(node.begin(), node.end(), rank_in_group) - node.begin());
}

ShardNodes shard_nodes(const comm::World& world, const std::vector<int>& ranks) {
  const bool share = world.options().same_node != "mpi";
  ShardNodes nodes;
  std::vector<std::string> hosts;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const std::string& host = world.hosts()[ranks[i]];
    const auto found = share ? std::find(hosts.begin(), hosts.end(), host) : hosts.end();
    const auto node = static_cast<std::size_t>(found - hosts.begin());
    if (found == hosts.end()) {
      hosts.push_back(host);
      nodes.members.emplace_back();
    }
    nodes.members[node].push_back(static_cast<int>(i));
    if (ranks[i] == world.rank()) {
      nodes.own = node;
    }
  }
  return nodes;
}

} // namespace tessera::sharding
