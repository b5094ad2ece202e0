#include "cli/plan/planned_hosts.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/index.h"

namespace tessera::cli {

namespace {

// The nodes in the order of the plan's ranks.
std::vector<int> used_nodes(const planner::Candidate& candidate, const cost::Cluster& cluster) {
  if (!candidate.node_order.empty()) {
    return candidate.node_order;
  }
  std::vector<int> all(cluster.nodes.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

std::vector<int> idle_nodes(const planner::Candidate& candidate, const cost::Cluster& cluster) {
  const std::vector<int> used = used_nodes(candidate, cluster);
  std::vector<int> idle;
  for (int n = 0; n < static_cast<int>(cluster.nodes.size()); ++n) {
    if (std::find(used.begin(), used.end(), n) == used.end()) {
      idle.push_back(n);
    }
  }
  return idle;
}

} // namespace

std::string hostfile_text(const planner::Candidate& candidate, const cost::Cluster& cluster) {
  std::string text;
  std::set<std::string> known;
  for (const int n : used_nodes(candidate, cluster)) {
    const cost::Node& node = cluster.nodes[at(n)];
    if (node.host.empty() || !known.insert(node.host).second) {
      throw ConfigError(
          str("--write-hostfile: node ",
              n,
              " of the cluster ",
              node.host.empty() ? "has no host name" : "is on a host of another node, " + node.host,
              "; plan with the file that tessera probe wrote on these hosts, or write \"host\" of "
              "every node into the cluster file"));
    }
    text += str(node.host, " slots=", node.count, "\n");
  }
  for (const int n : idle_nodes(candidate, cluster)) {
    text += str("# ", cluster.nodes[at(n)].host, " stays idle\n");
  }
  return text;
}

std::string idle_hosts(const planner::Candidate& candidate, const cost::Cluster& cluster) {
  std::string text;
  for (const int n : idle_nodes(candidate, cluster)) {
    const std::string& host = cluster.nodes[at(n)].host;
    text += (text.empty() ? "" : ", ") + (host.empty() ? str("node ", n) : host);
  }
  return text;
}

} // namespace tessera::cli
