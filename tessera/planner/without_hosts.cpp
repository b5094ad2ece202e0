#include "tessera/planner/without_hosts.h"

#include <algorithm>
#include <set>

#include "tessera/base/error.h"
#include "tessera/planner/node_sets.h"

namespace tessera::planner {

namespace {

// Returns the name of a node as `without_hosts` takes it.
std::string name_of(const cost::Cluster& cluster, std::size_t node) {
  const std::string& host = cluster.nodes[node].host;
  return host.empty() ? std::to_string(node) : host;
}

std::string all_names(const cost::Cluster& cluster) {
  constexpr std::size_t kMostNamed = 16;
  std::string text;
  for (std::size_t n = 0; n < std::min(kMostNamed, cluster.nodes.size()); ++n) {
    text += (n == 0 ? "" : ", ") + name_of(cluster, n);
  }
  return text + (cluster.nodes.size() > kMostNamed ? ", ..." : "");
}

// Returns the nodes of this host.
std::vector<int> nodes_of(const cost::Cluster& cluster, const std::string& host) {
  std::vector<int> nodes;
  for (std::size_t n = 0; n < cluster.nodes.size(); ++n) {
    if (cluster.nodes[n].host == host) {
      nodes.push_back(static_cast<int>(n));
    }
  }
  for (std::size_t n = 0; nodes.empty() && n < cluster.nodes.size(); ++n) {
    if (std::to_string(n) == host) {
      return {static_cast<int>(n)};
    }
  }
  return nodes;
}

} // namespace

cost::Cluster without_hosts(const cost::Cluster& cluster, const std::vector<std::string>& hosts) {
  std::set<int> gone;
  for (const std::string& host : hosts) {
    const std::vector<int> nodes = nodes_of(cluster, host);
    if (host.empty() || nodes.empty()) {
      throw ConfigError(
          str("without host: found \"",
              host,
              "\"; write one of the hosts of the cluster: ",
              all_names(cluster)));
    }
    gone.insert(nodes.begin(), nodes.end());
  }
  std::vector<int> left;
  for (int n = 0; n < static_cast<int>(cluster.nodes.size()); ++n) {
    if (gone.count(n) == 0) {
      left.push_back(n);
    }
  }
  if (left.empty()) {
    throw ConfigError(
        str("without host: no host is left of ", all_names(cluster), "; name fewer of them"));
  }
  return left.size() == cluster.nodes.size() ? cluster : part_of(cluster, left);
}

} // namespace tessera::planner
