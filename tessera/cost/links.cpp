#include "tessera/cost/links.h"

#include <algorithm>
#include <limits>
#include <set>

#include "tessera/cost/collective.h"

namespace tessera::cost {

namespace {

constexpr double kUnlimited = std::numeric_limits<double>::infinity();

std::size_t at(int index) {
  return static_cast<std::size_t>(index);
}

// The nodes of a strategy's groups, and a number of flows on every node's network,
// which is the same in both directions.
class Networks {
 public:
  Networks(const Strategy& strategy, const Cluster& cluster)
      : strategy_(strategy),
        cluster_(cluster),
        node_of_device_(cluster.node_of_device()),
        count_(cluster.nodes.size(), 0) {}

  int node(int stage, int replica, int tensor) const {
    const int rank = strategy_.rank(stage, replica, tensor);
    return node_of_device_[at(strategy_.device_of_rank[at(rank)])];
  }

  std::vector<double>& count() {
    return count_;
  }

  // Returns the nodes of a group, each once.
  static std::set<int> nodes_of(const std::vector<int>& members) {
    return {members.begin(), members.end()};
  }

  std::vector<int> tensor_group(int stage, int replica) const {
    std::vector<int> members;
    members.reserve(at(strategy_.tp));
    for (int t = 0; t < strategy_.tp; ++t) {
      members.push_back(node(stage, replica, t));
    }
    return members;
  }

  std::vector<int> data_group(int stage, int tensor) const {
    std::vector<int> members;
    members.reserve(at(strategy_.dp));
    for (int d = 0; d < strategy_.dp; ++d) {
      members.push_back(node(stage, d, tensor));
    }
    return members;
  }

  // Returns the bandwidth of the slowest link of a ring over the nodes of its ranks.
  double ring_bytes_per_s(const std::vector<int>& members) const {
    const std::set<int> nodes = nodes_of(members);
    double slowest = kUnlimited;
    for (const int n : nodes) {
      const Node& node = cluster_.nodes[at(n)];
      if (nodes.size() < members.size() && node.count > 1) {
        slowest = std::min(slowest, node.intra_bytes_per_s);
      }
      if (nodes.size() > 1) {
        slowest = std::min(slowest, node.inter_bytes_per_s / std::max(1.0, count_[at(n)]));
      }
    }
    return slowest;
  }

 private:
  const Strategy& strategy_;
  const Cluster& cluster_;
  std::vector<int> node_of_device_;
  std::vector<double> count_;
};

} // namespace

PlacementLinks place(const Strategy& strategy, const Cluster& cluster, const Constants& constants) {
  PlacementLinks result;
  Networks tensor(strategy, cluster);
  if (strategy.tp > 1) {
    for (int k = 0; k < strategy.pp; ++k) {
      for (int d = 0; d < strategy.dp; ++d) {
        const auto nodes = Networks::nodes_of(tensor.tensor_group(k, d));
        for (const int n : nodes) {
          tensor.count()[at(n)] += nodes.size() > 1 ? 1 : 0;
        }
      }
    }
  }
  std::set<std::vector<int>> pipelines;
  std::vector<std::set<int>> kinds(at(strategy.pp));
  std::vector<std::vector<int>> kinds_of(
      at(strategy.dp * strategy.tp), std::vector<int>(at(strategy.pp), 0));
  for (int k = 0; k < strategy.pp; ++k) {
    StageLinks links;
    links.tensor_bytes_per_s = kUnlimited;
    links.next_bytes_per_s = kUnlimited;
    // All replicas send between two stages at the same time, so they share networks.
    std::vector<double> out(cluster.nodes.size(), 0);
    std::vector<double> in(cluster.nodes.size(), 0);
    for (int d = 0; d < strategy.dp; ++d) {
      if (strategy.tp > 1) {
        const std::vector<int> group = tensor.tensor_group(k, d);
        links.tensor_bytes_per_s =
            std::min(links.tensor_bytes_per_s, tensor.ring_bytes_per_s(group));
        links.tensor_nodes =
            std::max(links.tensor_nodes, static_cast<int>(Networks::nodes_of(group).size()));
      }
      for (int t = 0; t < strategy.tp; ++t) {
        const int here = tensor.node(k, d, t);
        const int kind = cluster.nodes[at(here)].kind;
        kinds[at(k)].insert(kind);
        kinds_of[at(d * strategy.tp + t)][at(k)] = kind;
        if (k + 1 < strategy.pp && tensor.node(k + 1, d, t) != here) {
          out[at(here)] += 1;
          in[at(tensor.node(k + 1, d, t))] += 1;
        }
      }
    }
    links.home_bytes_per_s = kUnlimited;
    const auto bandwidth = [&](int here, int there) {
      const Node& from = cluster.nodes[at(here)];
      const Node& to = cluster.nodes[at(there)];
      return here == there ? from.intra_bytes_per_s
                           : std::min(
                                 {from.inter_bytes_per_s / std::max(1.0, out[at(here)]),
                                  to.inter_bytes_per_s / std::max(1.0, in[at(there)]),
                                  cluster.between(here, there)});
    };
    for (int d = 0; d < strategy.dp; ++d) {
      for (int t = 0; t < strategy.tp; ++t) {
        const int here = tensor.node(k, d, t);
        if (k + 1 < strategy.pp) {
          links.next_bytes_per_s =
              std::min(links.next_bytes_per_s, bandwidth(here, tensor.node(k + 1, d, t)));
        }
        if (k > 0) {
          links.home_bytes_per_s =
              std::min(links.home_bytes_per_s, bandwidth(here, tensor.node(0, d, t)));
        }
      }
    }
    links.tensor_bytes_per_s *= constants.link_efficiency;
    links.next_bytes_per_s *= constants.link_efficiency;
    links.home_bytes_per_s *= constants.link_efficiency;
    result.stages.push_back(links);
  }
  pipelines.insert(kinds_of.begin(), kinds_of.end());
  result.pipelines.assign(pipelines.begin(), pipelines.end());
  for (const auto& set : kinds) {
    result.kinds.emplace_back(set.begin(), set.end());
  }
  return result;
}

double send_seconds(
    const PlacementLinks& links,
    int stage,
    double bytes,
    bool returns_home,
    const Constants& constants) {
  const int stages = static_cast<int>(links.stages.size());
  const double latency = constants.link_latency_seconds;
  const auto home = [&](int k) { return bytes / links.stages[at(k)].home_bytes_per_s + latency; };
  if (stage + 1 == stages) {
    return returns_home && stages > 1 ? home(stage) : 0;
  }
  if (returns_home && stage > 0) {
    return home(stage) + home(stage + 1);
  }
  return bytes / links.stages[at(stage)].next_bytes_per_s + latency;
}

double gradient_sync_seconds(
    const Strategy& strategy,
    const Cluster& cluster,
    const std::vector<double>& parameters,
    const std::vector<double>& whole,
    const std::vector<double>& tied,
    const Constants& constants) {
  Networks networks(strategy, cluster);
  std::vector<double> network(cluster.nodes.size(), 0); // bytes out of it
  std::vector<double> inside(at(strategy.devices()), 0); // seconds, by rank
  double latency = 0;
  double measured = 0; // of groups whose all-reduce was measured
  const double wire = constants.gradient_wire_bytes;
  const auto add =
      [&](const std::vector<int>& nodes_of_members, const std::vector<int>& ranks, double bytes) {
        const Traffic ring = ring_traffic("all_reduce", static_cast<int>(ranks.size()), bytes);
        const double sent = ring.wire_bytes;
        const auto nodes = Networks::nodes_of(nodes_of_members);
        const double found = cluster.collective_seconds(
            "all_reduce", static_cast<int>(ranks.size()), static_cast<int>(nodes.size()), bytes);
        if (found > 0) {
          measured = std::max(measured, found);
          return;
        }
        double slowest = kUnlimited;
        for (const int n : nodes) {
          if (nodes.size() > 1) {
            network[at(n)] += sent;
          }
          if (cluster.nodes[at(n)].count > 1) {
            slowest = std::min(slowest, cluster.nodes[at(n)].intra_bytes_per_s);
          }
        }
        if (nodes.size() < ranks.size()) {
          for (const int rank : ranks) {
            inside[at(rank)] += sent / slowest;
          }
        }
        latency = std::max(latency, ring.steps * constants.link_latency_seconds);
      };
  for (int k = 0; k < strategy.pp; ++k) {
    if (strategy.tp > 1 && whole[at(k)] > 0) {
      std::vector<int> ranks;
      std::vector<int> nodes;
      for (int d = 0; d < strategy.dp; ++d) {
        for (int t = 0; t < strategy.tp; ++t) {
          ranks.push_back(strategy.rank(k, d, t));
          nodes.push_back(networks.node(k, d, t));
        }
      }
      add(nodes, ranks, whole[at(k)] * wire);
    }
    const double divided = parameters[at(k)] - (strategy.tp > 1 ? whole[at(k)] : 0);
    if (strategy.dp == 1 || divided <= 0) {
      continue;
    }
    for (int t = 0; t < strategy.tp; ++t) {
      std::vector<int> ranks;
      ranks.reserve(at(strategy.dp));
      for (int d = 0; d < strategy.dp; ++d) {
        ranks.push_back(strategy.rank(k, d, t));
      }
      add(networks.data_group(k, t), ranks, divided * wire);
    }
  }
  // Stages that hold the same parameters form groups with one rank of each stage.
  std::vector<int> sharing;
  double shared = 0;
  for (int k = 0; k < strategy.pp; ++k) {
    if (tied[at(k)] > 0) {
      sharing.push_back(k);
      shared = std::max(shared, tied[at(k)]);
    }
  }
  for (int d = 0; sharing.size() > 1 && d < strategy.dp; ++d) {
    for (int t = 0; t < strategy.tp; ++t) {
      std::vector<int> ranks;
      std::vector<int> nodes;
      for (const int k : sharing) {
        ranks.push_back(strategy.rank(k, d, t));
        nodes.push_back(networks.node(k, d, t));
      }
      add(nodes, ranks, shared * wire);
    }
  }
  double seconds = 0;
  for (std::size_t n = 0; n < network.size(); ++n) {
    if (network[n] > 0) {
      seconds = std::max(seconds, network[n] / cluster.nodes[n].inter_bytes_per_s);
    }
  }
  for (const double busy : inside) {
    seconds = std::max(seconds, busy);
  }
  // Measured times count once: the groups of all stages ran together when they were measured.
  return std::max(measured, seconds > 0 ? seconds / constants.link_efficiency + latency : 0);
}

} // namespace tessera::cost
