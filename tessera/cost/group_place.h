#pragma once

#include <map>
#include <utility>
#include <vector>

#include "tessera/cost/cluster.h"
#include "tessera/cost/collective.h"
#include "tessera/cost/constants.h"
#include "tessera/cost/strategy.h"

namespace tessera::cost {

/// The links of pairs of nodes that carry less than the networks of both nodes, and what leads out
/// of groups of nodes. No other link bounds what flows between two nodes, since all of it leaves
/// and enters through the networks. Links are numbered from 0 and carry two directions.
class NodeLinks {
 public:
  /// A link that a flow passes: in its second direction from the higher of two nodes to the lower,
  /// and into a group.
  struct Passed {
    int link = 0;
    bool second = false;

    auto operator<=>(const Passed&) const = default;
  };

  explicit NodeLinks(const Cluster& cluster);

  int size() const {
    return static_cast<int>(bytes_per_s_.size());
  }
  double bytes_per_s(int link) const {
    return bytes_per_s_[static_cast<std::size_t>(link)];
  }
  /// Returns the links that a flow between two different nodes passes; empty when their networks
  /// alone bound it.
  std::vector<Passed> between(int from, int to) const;
  /// Returns the time from sending to receiving a short message between devices of two nodes, or of
  /// one; 0 where the cluster does not say.
  double latency_seconds(int from, int to) const;
  /// Returns the links between any two of these nodes: of a group, what leads out of it counts
  /// once, since a collective visits the nodes of a group one after the other.
  std::vector<int> among(const NodeSet& nodes) const;

 private:
  std::map<std::pair<int, int>, int> number_; // (lower node, higher node) -> link
  std::vector<std::pair<NodeSet, int>> groups_; // nodes of a group, and its link
  std::vector<double> bytes_per_s_;
  std::map<std::pair<int, int>, double> latency_; // (lower node, higher node) -> seconds, if said
};

/// Returns the latency of a message between devices of two nodes, or of one: as their cluster says,
/// else Constants::link_latency_seconds.
double message_latency(const NodeLinks& links, int from, int to, const Constants& constants);

/// Where a group of ranks is placed.
struct GroupPlace {
  NodeSet nodes;
  std::vector<int> ranks; // of the group on each of the nodes
  /// Those of the nodes that have several of its ranks, which reach each other inside.
  NodeSet crowded;
  /// The links of NodeLinks between its nodes; empty for a group on one node.
  std::vector<int> links;
};

/// Returns the time of a step of collectives on these nodes. One inside of a node takes as long as
/// its devices' messages, where the file of a cluster says that; else, where the file says what one
/// between nodes takes, Constants::device_latency_seconds. What it does not say takes
/// Constants::link_latency_seconds.
StepSeconds step_seconds(const NodeSet& nodes, const Cluster& cluster, const Constants& constants);

/// The places of a strategy's ranks. Keeps references to both arguments. Threads: any.
class Places {
 public:
  Places(const Strategy& strategy, const Cluster& cluster);

  int node(int rank) const {
    const int device = strategy_.device_of_rank[static_cast<std::size_t>(rank)];
    return node_of_device_[static_cast<std::size_t>(device)];
  }
  int node(int stage, int replica, int tensor) const {
    return node(strategy_.rank(stage, replica, tensor));
  }
  GroupPlace of(const std::vector<int>& ranks) const;
  const NodeLinks& links() const {
    return links_;
  }

  /// Returns the virtual ranks of a tensor-parallel group.
  std::vector<int> tensor_group(int stage, int replica) const;
  /// Returns those of the replicas of one tensor-parallel rank.
  std::vector<int> replicas(int stage, int tensor) const;
  /// Returns those of a stage, and of one rank of every one of `stages`.
  std::vector<int> stage(int stage) const;
  std::vector<int> across(const std::vector<int>& stages, int replica, int tensor) const;

 private:
  const Strategy& strategy_;
  std::vector<int> node_of_device_;
  NodeLinks links_;
};

} // namespace tessera::cost
