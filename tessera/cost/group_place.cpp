#include "tessera/cost/group_place.h"

#include <algorithm>

#include "tessera/base/index.h"

namespace tessera::cost {

NodeLinks::NodeLinks(const Cluster& cluster) {
  for (const NodeLink& link : cluster.links) {
    const auto network = [&](int node) {
      return cluster.nodes[static_cast<std::size_t>(node)].inter_bytes_per_s;
    };
    // The first of several links of one pair counts, as in Cluster::between.
    const auto [place, is_first] = number_.emplace(std::minmax(link.first, link.second), -1);
    if (is_first && link.latency_seconds > 0) {
      latency_.emplace(place->first, link.latency_seconds);
    }
    if (is_first && link.bytes_per_s < std::min(network(link.first), network(link.second))) {
      place->second = size();
      bytes_per_s_.push_back(link.bytes_per_s);
    }
  }
  for (int n = 0; n < static_cast<int>(cluster.nodes.size()); ++n) {
    if (cluster.nodes[at(n)].latency_seconds > 0) {
      latency_.emplace(std::pair(n, n), cluster.nodes[at(n)].latency_seconds);
    }
  }
  for (const NodeGroup& group : cluster.groups) {
    groups_.emplace_back(group.nodes, size());
    bytes_per_s_.push_back(group.bytes_per_s);
  }
}

double NodeLinks::latency_seconds(int from, int to) const {
  const auto found = latency_.find(std::minmax(from, to));
  return found == latency_.end() ? 0 : found->second;
}

double message_latency(const NodeLinks& links, int from, int to, const Constants& constants) {
  const double said = links.latency_seconds(from, to);
  return said > 0 ? said : constants.link_latency_seconds;
}

std::vector<NodeLinks::Passed> NodeLinks::between(int from, int to) const {
  std::vector<Passed> passed;
  if (size() == 0) {
    return passed;
  }
  const auto found = number_.find(std::minmax(from, to));
  if (found != number_.end() && found->second >= 0) {
    passed.push_back({found->second, from > to});
  }
  for (const auto& [nodes, link] : groups_) {
    const bool leaves = std::binary_search(nodes.begin(), nodes.end(), from);
    const bool enters = std::binary_search(nodes.begin(), nodes.end(), to);
    if (leaves != enters) {
      passed.push_back({link, enters});
    }
  }
  return passed;
}

std::vector<int> NodeLinks::among(const NodeSet& nodes) const {
  std::vector<int> result;
  if (size() == 0) {
    return result;
  }
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    for (std::size_t j = i + 1; j < nodes.size(); ++j) {
      const auto found = number_.find({nodes[i], nodes[j]});
      if (found != number_.end() && found->second >= 0) {
        result.push_back(found->second);
      }
    }
  }
  for (const auto& [group, link] : groups_) {
    const auto inside = std::count_if(nodes.begin(), nodes.end(), [&of = group](int node) {
      return std::binary_search(of.begin(), of.end(), node);
    });
    if (inside > 0 && inside < static_cast<std::ptrdiff_t>(nodes.size())) {
      result.push_back(link);
    }
  }
  return result;
}

Places::Places(const Strategy& strategy, const Cluster& cluster)
    : strategy_(strategy), node_of_device_(cluster.node_of_device()), links_(cluster) {}

GroupPlace Places::of(const std::vector<int>& ranks) const {
  NodeSet members;
  members.reserve(ranks.size());
  for (const int rank : ranks) {
    members.push_back(node(rank));
  }
  std::sort(members.begin(), members.end());
  GroupPlace place;
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (i == 0 || members[i] != members[i - 1]) {
      place.nodes.push_back(members[i]);
      place.ranks.push_back(1);
      continue;
    }
    ++place.ranks.back();
    if (place.crowded.empty() || place.crowded.back() != members[i]) {
      place.crowded.push_back(members[i]);
    }
  }
  place.links = links_.among(place.nodes);
  return place;
}

std::vector<int> Places::tensor_group(int stage, int replica) const {
  std::vector<int> ranks;
  ranks.reserve(static_cast<std::size_t>(strategy_.tp));
  for (int t = 0; t < strategy_.tp; ++t) {
    ranks.push_back(strategy_.rank(stage, replica, t));
  }
  return ranks;
}

std::vector<int> Places::replicas(int stage, int tensor) const {
  std::vector<int> ranks;
  ranks.reserve(static_cast<std::size_t>(strategy_.dp));
  for (int d = 0; d < strategy_.dp; ++d) {
    ranks.push_back(strategy_.rank(stage, d, tensor));
  }
  return ranks;
}

std::vector<int> Places::stage(int stage) const {
  std::vector<int> ranks;
  const int first = strategy_.rank(stage, 0, 0);
  for (int i = 0; i < strategy_.dp * strategy_.tp; ++i) {
    ranks.push_back(first + i);
  }
  return ranks;
}

std::vector<int> Places::across(const std::vector<int>& stages, int replica, int tensor) const {
  std::vector<int> ranks;
  ranks.reserve(stages.size());
  for (const int stage : stages) {
    ranks.push_back(strategy_.rank(stage, replica, tensor));
  }
  return ranks;
}

StepSeconds step_seconds(const NodeSet& nodes, const Cluster& cluster, const Constants& constants) {
  StepSeconds step = {.between = 0, .inside = 0};
  for (const int n : nodes) {
    const Node& node = cluster.nodes[at(n)];
    const bool between = node.network_latency_seconds > 0;
    // A measured cluster's latencies are in the constant, and its collectives were measured.
    const bool inside = node.latency_seconds > 0 && !cluster.measured;
    step.between = std::max(
        step.between, between ? node.network_latency_seconds : constants.link_latency_seconds);
    step.inside = std::max(
        step.inside,
        inside    ? node.latency_seconds
        : between ? constants.device_latency_seconds
                  : constants.link_latency_seconds);
  }
  return step;
}

} // namespace tessera::cost
