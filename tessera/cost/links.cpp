#include "tessera/cost/links.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "tessera/base/index.h"
#include "tessera/cost/collective.h"
#include "tessera/cost/group_place.h"
#include "tessera/cost/mesh_lines.h"
#include "tessera/cost/staged_strategy.h"

namespace tessera::cost {

namespace {

constexpr double kUnlimited = std::numeric_limits<double>::infinity();

// Returns the bandwidth of the slowest link of a group's ring, of which `on_network` and `on_link`
// say how many rings a node's network and a link of NodeLinks carry.
template <typename OnNetwork, typename OnLink>
double slowest_link(
    const GroupPlace& group,
    const Cluster& cluster,
    const NodeLinks& links,
    const OnNetwork& on_network,
    const OnLink& on_link) {
  double slowest = kUnlimited;
  for (const int n : group.crowded) {
    slowest = std::min(slowest, cluster.nodes[at(n)].intra_bytes_per_s);
  }
  for (std::size_t i = 0; i < group.nodes.size() && group.nodes.size() > 1; ++i) {
    const Node& node = cluster.nodes[at(group.nodes[i])];
    slowest = std::min(
        {slowest,
         node.inter_bytes_per_s / on_network(group.nodes[i]),
         collective_bytes_per_s(node, group.ranks[i])});
  }
  for (const int link : group.links) {
    slowest = std::min(slowest, links.bytes_per_s(link) / on_link(link));
  }
  return slowest;
}

// This counts rings that run at the same time on what they share.
class Rings {
 public:
  Rings(const Cluster& cluster, const Places& places)
      : cluster_(cluster),
        places_(places),
        on_network_(cluster.nodes.size(), 0),
        on_link_(at(places.links().size()), 0) {}

  void add(const GroupPlace& group) {
    for (const int n : group.nodes) {
      on_network_[at(n)] += group.nodes.size() > 1 ? 1 : 0;
    }
    for (const int link : group.links) {
      on_link_[at(link)] += 1;
    }
  }

  // Returns the bandwidth of the slowest link of one of the rings.
  double bytes_per_s(const GroupPlace& group) const {
    return slowest_link(
        group,
        cluster_,
        places_.links(),
        [this](int node) { return on_network_[at(node)]; },
        [this](int link) { return on_link_[at(link)]; });
  }

 private:
  const Cluster& cluster_;
  const Places& places_;
  std::vector<double> on_network_; // rings on each node's network, the same in both directions
  std::vector<double> on_link_;
};

using Flow = std::pair<int, int>; // from one node to another

// Returns the bandwidth of the slowest of flows that run at the same time.
double slowest_of(const std::vector<Flow>& flows, const Cluster& cluster, const Places& places) {
  std::map<int, double> out;
  std::map<int, double> in;
  std::map<Flow, double> both;
  std::map<NodeLinks::Passed, double> on_link;
  for (const Flow& flow : flows) {
    out[flow.first] += 1;
    in[flow.second] += 1;
    both[flow] += 1;
    if (flow.first == flow.second) { // inside a node, where every pair has a link
      out[flow.first] -= 1;
      in[flow.second] -= 1;
    }
  }
  for (const auto& [flow, count] : both) {
    if (flow.first != flow.second) {
      for (const NodeLinks::Passed& one : places.links().between(flow.first, flow.second)) {
        on_link[one] += count;
      }
    }
  }
  double slowest = kUnlimited;
  for (const auto& [flow, count] : both) {
    const auto& [from, to] = flow;
    if (from == to) {
      slowest = std::min(slowest, cluster.nodes[at(from)].intra_bytes_per_s);
      continue;
    }
    slowest = std::min(
        {slowest,
         cluster.nodes[at(from)].inter_bytes_per_s / out[from],
         cluster.nodes[at(to)].inter_bytes_per_s / in[to],
         stream_bytes_per_s(cluster.nodes[at(from)]),
         stream_bytes_per_s(cluster.nodes[at(to)])});
    for (const NodeLinks::Passed& one : places.links().between(from, to)) {
      slowest = std::min(slowest, places.links().bytes_per_s(one.link) / on_link[one]);
    }
  }
  return slowest;
}

// Returns the latency of the slowest of these messages.
double
longest_latency(const std::vector<Flow>& flows, const Places& places, const Constants& constants) {
  double longest = 0;
  for (const auto& [from, to] : flows) {
    longest = std::max(longest, message_latency(places.links(), from, to, constants));
  }
  return longest;
}

// Returns the rate at which a group's ring goes that has all links to itself.
double alone_bytes_per_s(const GroupPlace& group, const Cluster& cluster, const NodeLinks& links) {
  const auto one = [](int /*place*/) { return 1.0; };
  return slowest_link(group, cluster, links, one, one);
}

// Sets what a stage's tensor-parallel groups have; all groups of the cluster are in `rings`.
void place_tensor_groups(
    const std::vector<GroupPlace>& groups,
    const Rings& rings,
    const Cluster& cluster,
    const Constants& constants,
    StageLinks& links) {
  links.tensor_bytes_per_s = kUnlimited;
  std::set<Span> spans;
  for (const GroupPlace& group : groups) {
    const StepSeconds step = step_seconds(group.nodes, cluster, constants);
    links.tensor_step.between = std::max(links.tensor_step.between, step.between);
    links.tensor_step.inside = std::max(links.tensor_step.inside, step.inside);
    links.tensor_bytes_per_s = std::min(links.tensor_bytes_per_s, rings.bytes_per_s(group));
    spans.insert(cluster.span_of(group.nodes));
  }
  links.tensor_nodes.assign(spans.begin(), spans.end());
}

} // namespace

double all_reduce_delay(
    const GroupPlace& group,
    const NodeLinks& links,
    double bytes,
    const Cluster& cluster,
    const Constants& constants) {
  const int nodes = static_cast<int>(group.nodes.size());
  const int ranks = std::accumulate(group.ranks.begin(), group.ranks.end(), 0);
  const StepSeconds step = step_seconds(group.nodes, cluster, constants);
  const Traffic ring = ring_traffic("all_reduce", ranks, nodes, bytes);
  if (nodes == 1 || cluster.measured) {
    return ring.latency(step);
  }
  const Traffic tree = tree_traffic(ranks, nodes, bytes, constants.tree_bandwidth_share);
  const double bytes_per_s = alone_bytes_per_s(group, cluster, links) * constants.link_efficiency;
  return std::min(
      ring.latency(step), tree.latency(step) + (tree.wire_bytes - ring.wire_bytes) / bytes_per_s);
}

PlacementLinks place(const Strategy& strategy, const Cluster& cluster, const Constants& constants) {
  PlacementLinks result;
  const Places places(strategy, cluster);
  Rings rings(cluster, places);
  std::vector<std::vector<GroupPlace>> tensor_groups(at(strategy.pp));
  for (int k = 0; strategy.tp > 1 && k < strategy.pp; ++k) {
    for (int d = 0; d < strategy.dp; ++d) {
      tensor_groups[at(k)].push_back(places.of(places.tensor_group(k, d)));
      rings.add(tensor_groups[at(k)].back());
    }
  }
  std::optional<MeshLines> lines;
  if (strategy.tp > 1 && strategy.distribution == Distribution::kMesh) {
    lines.emplace(strategy, cluster, places, constants);
  }
  std::vector<std::set<int>> kinds(at(strategy.pp));
  std::vector<std::vector<int>> kinds_of(
      at(strategy.dp * strategy.tp), std::vector<int>(at(strategy.pp), 0));
  for (int k = 0; k < strategy.pp; ++k) {
    StageLinks links;
    place_tensor_groups(tensor_groups[at(k)], rings, cluster, constants, links);
    if (lines) {
      links.rows = lines->rows(k);
      links.columns = lines->columns(k);
    }
    // All replicas send between two stages at the same time, so they share networks.
    std::vector<Flow> next;
    std::vector<Flow> home;
    for (int d = 0; d < strategy.dp; ++d) {
      for (int t = 0; t < strategy.tp; ++t) {
        const int here = places.node(k, d, t);
        const int kind = cluster.nodes[at(here)].kind;
        kinds[at(k)].insert(kind);
        kinds_of[at(d * strategy.tp + t)][at(k)] = kind;
        if (k + 1 < strategy.pp || strategy.stages_per_rank > 1) {
          next.emplace_back(here, places.node((k + 1) % strategy.pp, d, t));
          result.sends_between_nodes |= next.back().first != next.back().second;
        }
        if (k > 0) {
          home.emplace_back(here, places.node(0, d, t));
        }
      }
    }
    links.tensor_bytes_per_s *= constants.link_efficiency;
    links.next_bytes_per_s = slowest_of(next, cluster, places) * constants.link_efficiency;
    links.home_bytes_per_s = slowest_of(home, cluster, places) * constants.link_efficiency;
    links.next_latency_seconds = longest_latency(next, places, constants);
    links.home_latency_seconds = longest_latency(home, places, constants);
    result.stages.push_back(links);
  }
  const std::set<std::vector<int>> pipelines(kinds_of.begin(), kinds_of.end());
  result.pipelines.assign(pipelines.begin(), pipelines.end());
  for (const auto& set : kinds) {
    result.kinds.emplace_back(set.begin(), set.end());
  }
  return result;
}

std::vector<StageLinks>
place_groups(const StagedStrategy& strategy, const Cluster& cluster, const Constants& constants) {
  // Ranks are the devices themselves.
  Strategy devices;
  devices.dp = cluster.device_count();
  devices.device_of_rank.resize(at(devices.dp));
  std::iota(devices.device_of_rank.begin(), devices.device_of_rank.end(), 0);
  const Places places(devices, cluster);
  Rings rings(cluster, places);
  std::vector<std::vector<GroupPlace>> groups;
  for (const OwnStage& stage : strategy.stages) {
    groups.emplace_back();
    const std::ptrdiff_t width = stage.way.degree;
    for (auto first = stage.devices.begin(); width > 1 && first != stage.devices.end();
         first += width) {
      groups.back().push_back(places.of({first, first + width}));
      rings.add(groups.back().back());
    }
  }
  std::vector<StageLinks> result;
  for (int k = 0; k < static_cast<int>(strategy.stages.size()); ++k) {
    StageLinks links;
    place_tensor_groups(groups[at(k)], rings, cluster, constants, links);
    links.tensor_bytes_per_s *= constants.link_efficiency;
    const TensorWay& way = strategy.stages[at(k)].way;
    if (way.degree > 1 && way.distribution == Distribution::kMesh) {
      const Strategy own = alone(strategy, k);
      const Places own_places(own, cluster);
      const MeshLines lines(own, cluster, own_places, constants);
      links.rows = lines.rows(0);
      links.columns = lines.columns(0);
    }
    result.push_back(links);
  }
  return result;
}

bool has_relays(const Strategy& strategy, bool returns_home) {
  return returns_home && strategy.pp > 2 && !strategy.fast_mode;
}

double send_seconds(
    const PlacementLinks& links,
    const Strategy& strategy,
    int stage,
    double bytes,
    bool returns_home) {
  const int rank = stage % strategy.pp;
  const int next = (stage + 1) % strategy.pp;
  const auto home = [&](int k) {
    const StageLinks& own = links.stages[at(k)];
    return bytes / own.home_bytes_per_s + own.home_latency_seconds;
  };
  if (stage + 1 == strategy.stages()) {
    return returns_home && strategy.pp > 1 ? home(rank) : 0;
  }
  if (has_relays(strategy, returns_home) && rank > 0) {
    return home(rank) + (next > 0 ? home(next) : 0);
  }
  const StageLinks& own = links.stages[at(rank)];
  return bytes / own.next_bytes_per_s + own.next_latency_seconds;
}

} // namespace tessera::cost
