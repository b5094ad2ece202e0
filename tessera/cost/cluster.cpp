#include "tessera/cost/cluster.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <string_view>

#include "tessera/base/error.h"

namespace tessera::cost {

namespace {

bool positive(double value) {
  return std::isfinite(value) && value > 0;
}

void validate_links(const Cluster& cluster) {
  const int nodes = static_cast<int>(cluster.nodes.size());
  for (std::size_t i = 0; i < cluster.links.size(); ++i) {
    const NodeLink& link = cluster.links[i];
    const std::string place = str("cluster: links[", i, "].");
    if (link.first < 0 || link.second < 0 || link.first >= nodes || link.second >= nodes ||
        link.first == link.second) {
      throw ConfigError(
          str(place,
              "nodes: found ",
              link.first,
              " and ",
              link.second,
              "; write the numbers of two different nodes, 0 to ",
              nodes - 1));
    }
    const auto same = std::find_if(
        cluster.links.begin(),
        cluster.links.begin() + static_cast<std::ptrdiff_t>(i),
        [&](const NodeLink& other) {
          return std::minmax(other.first, other.second) == std::minmax(link.first, link.second);
        });
    if (same != cluster.links.begin() + static_cast<std::ptrdiff_t>(i)) {
      throw ConfigError(
          str(place,
              "nodes: found ",
              link.first,
              " and ",
              link.second,
              ", whose link links[",
              same - cluster.links.begin(),
              "] describes in both directions; write each pair once"));
    }
    if (!positive(link.bytes_per_s)) {
      throw ConfigError(
          str(place,
              "gbit_per_s: found ",
              link.bytes_per_s * 8e-9,
              "; nodes ",
              link.first,
              " and ",
              link.second,
              " cannot reach each other; write their bandwidth, more than 0, "
              "or leave one of them out"));
    }
    if (!std::isfinite(link.latency_seconds) || link.latency_seconds < 0) {
      throw ConfigError(
          str(place, "latency_us: found ", link.latency_seconds * 1e6, "; write 0 or more"));
    }
  }
}

std::string list_of(const NodeSet& nodes) {
  std::string list;
  for (const int node : nodes) {
    list += str(list.empty() ? "" : ", ", node);
  }
  return "[" + list + "]";
}

void validate_among(const CollectiveTime& one, int nodes) {
  const NodeSet& among = one.among;
  const bool ascending =
      std::adjacent_find(among.begin(), among.end(), std::greater_equal<>()) == among.end();
  const bool known = among.empty() || (among.front() >= 0 && among.back() < nodes);
  if (ascending && known && (among.empty() || static_cast<int>(among.size()) == one.nodes)) {
    return;
  }
  throw ConfigError(
      str("cluster: collectives: ",
          one.operation,
          " of ",
          one.ranks,
          " ranks: among: found ",
          list_of(among),
          "; write the numbers of its ",
          one.nodes,
          " nodes, ascending, each from 0 to ",
          nodes - 1,
          ", or leave the field out"));
}

// Those that a probe measures. Another name would be a time that nothing asks for.
void validate_operation(const CollectiveTime& one) {
  static constexpr std::array<std::string_view, 5> kKnown = {
      "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"};
  if (std::find(kKnown.begin(), kKnown.end(), one.operation) == kKnown.end()) {
    throw ConfigError(
        str("cluster: collectives: operation: found \"",
            one.operation,
            "\"; write all_reduce, all_gather, reduce_scatter, all_to_all or broadcast"));
  }
  if (one.nodes > one.ranks) {
    throw ConfigError(
        str("cluster: collectives: ",
            one.operation,
            " of ",
            one.ranks,
            " ranks on ",
            one.nodes,
            " nodes; write at least as many ranks as nodes"));
  }
}

void validate_hosts(const Cluster& cluster) {
  std::map<std::string, std::size_t> first;
  for (std::size_t n = 0; n < cluster.nodes.size(); ++n) {
    const std::string& host = cluster.nodes[n].host;
    const auto [found, added] = first.try_emplace(host, n);
    if (!host.empty() && !added) {
      throw ConfigError(
          str("cluster: nodes[",
              n,
              "].host: found \"",
              host,
              "\", the host of nodes[",
              found->second,
              "]; name each host once"));
    }
  }
}

// Groups are behind a switch each, so two of them have no node in common or one holds the other.
void validate_groups(const Cluster& cluster) {
  const int count = static_cast<int>(cluster.nodes.size());
  for (std::size_t i = 0; i < cluster.groups.size(); ++i) {
    const NodeSet& nodes = cluster.groups[i].nodes;
    const std::string place = str("cluster: groups[", i, "].");
    if (nodes.empty() || nodes.front() < 0 || nodes.back() >= count ||
        std::adjacent_find(nodes.begin(), nodes.end(), std::greater_equal<>()) != nodes.end()) {
      throw ConfigError(
          str(place,
              "nodes: found ",
              list_of(nodes),
              "; write numbers of nodes, ascending, each from 0 to ",
              count - 1));
    }
    if (!positive(cluster.groups[i].bytes_per_s)) {
      throw ConfigError(
          str(place,
              "gbit_per_s: found ",
              cluster.groups[i].bytes_per_s * 8e-9,
              "; write what leads out of the group's switch, more than 0"));
    }
    for (std::size_t j = 0; j < i; ++j) {
      const NodeSet& other = cluster.groups[j].nodes;
      NodeSet common;
      std::set_intersection(
          nodes.begin(), nodes.end(), other.begin(), other.end(), std::back_inserter(common));
      if (!common.empty() && common != nodes && common != other) {
        throw ConfigError(
            str(place,
                "nodes: found ",
                list_of(nodes),
                ", which shares node ",
                common.front(),
                " with groups[",
                j,
                "], ",
                list_of(other),
                ", and neither holds the other; write groups of which one holds all of the other, "
                "or that have no node in common"));
      }
    }
  }
}

void validate_points(const std::vector<MeasuredPoint>& points, const std::string& place) {
  double before = 0;
  for (const MeasuredPoint& point : points) {
    if (!(point.size > before) || !positive(point.seconds) || !(point.backward_seconds >= 0)) {
      throw ConfigError(
          str(place,
              ": found [",
              point.size,
              ", ",
              point.seconds,
              "]; write ascending sizes, each with seconds of more than 0"));
    }
    before = point.size;
  }
}

void validate_speed(const DeviceKind& kind) {
  const std::string place = str("cluster: devices.", kind.name, ".");
  for (const auto& [precision, points] : kind.speed.products) {
    validate_points(points, str(place, "product_seconds.", precision));
  }
  for (const auto& [precision, points] : kind.speed.batched_products) {
    validate_points(points, str(place, "batched_product_seconds.", precision));
  }
  for (const auto& [name, points] : kind.speed.operators) {
    validate_points(points, str(place, "operator_seconds.", name));
  }
  validate_points(kind.speed.weights, place + "weight_seconds");
  validate_points(kind.speed.moves, place + "move_seconds");
  validate_points(kind.speed.functions, place + "function_seconds");
  validate_points(kind.speed.random, place + "random_seconds");
  const bool some = kind.speed.measured() || !kind.speed.functions.empty() ||
                    !kind.speed.random.empty() || !kind.speed.products.empty();
  const bool all = kind.speed.measured() && !kind.speed.functions.empty() &&
                   !kind.speed.random.empty() && !kind.speed.products.empty();
  if (some && !all) {
    throw ConfigError(
        str(place,
            "product_seconds, move_seconds, function_seconds and "
            "random_seconds belong together; write all or none"));
  }
}

} // namespace

double stream_bytes_per_s(const Node& node) {
  const double card = node.inter_bytes_per_s / std::max(1, node.network_cards);
  return node.stream_bytes_per_s > 0 ? std::min(node.stream_bytes_per_s, card) : card;
}

double collective_bytes_per_s(const Node& node, int ranks) {
  return stream_bytes_per_s(node) * std::max(1, std::min(ranks, node.network_cards));
}

std::vector<NodeGroup> groups_among(
    const std::vector<NodeGroup>& groups,
    const std::vector<int>& nodes) {
  std::vector<NodeGroup> result;
  for (const NodeGroup& group : groups) {
    NodeGroup left = {.nodes = {}, .bytes_per_s = group.bytes_per_s};
    for (std::size_t n = 0; n < nodes.size(); ++n) {
      if (std::binary_search(group.nodes.begin(), group.nodes.end(), nodes[n])) {
        left.nodes.push_back(static_cast<int>(n));
      }
    }
    if (!left.nodes.empty()) {
      result.push_back(std::move(left));
    }
  }
  return result;
}

int Cluster::device_count() const {
  int count = 0;
  for (const Node& node : nodes) {
    count += node.count;
  }
  return count;
}

std::vector<int> Cluster::node_of_device() const {
  std::vector<int> result;
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    result.insert(result.end(), static_cast<std::size_t>(nodes[n].count), static_cast<int>(n));
  }
  return result;
}

double Cluster::between(int first, int second) const {
  double most = std::numeric_limits<double>::infinity();
  for (const NodeGroup& group : groups) {
    const auto has = [&](int node) {
      return std::binary_search(group.nodes.begin(), group.nodes.end(), node);
    };
    most = has(first) != has(second) ? std::min(most, group.bytes_per_s) : most;
  }
  for (const NodeLink& link : links) {
    if ((link.first == first && link.second == second) ||
        (link.first == second && link.second == first)) {
      return std::min(most, link.bytes_per_s);
    }
  }
  return std::min(
      {most,
       nodes[static_cast<std::size_t>(first)].inter_bytes_per_s,
       nodes[static_cast<std::size_t>(second)].inter_bytes_per_s});
}

bool Cluster::stalls() const {
  return std::pow(1 - stalling_share, static_cast<double>(nodes.size())) < 0.5;
}

Cluster Cluster::first_nodes(int count) const {
  if (count < 1 || count > static_cast<int>(nodes.size())) {
    throw ConfigError(
        str("nodes: found ", count, "; write 1 to ", nodes.size(), ", the nodes of the cluster"));
  }
  Cluster part = *this;
  part.nodes.resize(static_cast<std::size_t>(count));
  std::erase_if(part.links, [&](const NodeLink& link) {
    return link.first >= count || link.second >= count;
  });
  std::vector<int> first(static_cast<std::size_t>(count));
  std::iota(first.begin(), first.end(), 0);
  part.groups = groups_among(groups, first);
  std::erase_if(part.collectives, [&](const CollectiveTime& one) {
    return one.nodes > count || (!one.among.empty() && one.among.back() >= count);
  });
  return part;
}

double Cluster::latency_seconds() const {
  double longest = 0;
  for (const Node& node : nodes) {
    longest = std::max(longest, node.latency_seconds);
  }
  for (const NodeLink& link : links) {
    longest = std::max(longest, link.latency_seconds);
  }
  return longest;
}

double Cluster::waiting_share(int ranks) const {
  const auto found = std::find_if(
      waiting.begin(), waiting.end(), [&](const GroupWaiting& one) { return one.ranks == ranks; });
  return found == waiting.end() ? 0 : found->share;
}

Span Cluster::span_of(const NodeSet& nodes) const {
  const bool known = std::any_of(
      collectives.begin(), collectives.end(), [&](const auto& one) { return one.among == nodes; });
  return {static_cast<int>(nodes.size()), known ? nodes : NodeSet{}};
}

KnownCollective
Cluster::collective(const std::string& operation, int ranks, const Span& span, double bytes) const {
  // A group of fewer ranks than its span has nodes is a part of a larger one.
  const int count = std::min(span.count, ranks);
  std::map<NodeSet, std::vector<MeasuredPoint>> found;
  for (const CollectiveTime& one : collectives) {
    if (one.ranks == ranks && one.nodes == count && one.operation == operation) {
      found[one.among].push_back({one.bytes, one.seconds});
    }
  }
  for (auto& [among, points] : found) {
    std::sort(
        points.begin(), points.end(), [](const auto& a, const auto& b) { return a.size < b.size; });
  }
  for (const NodeSet& own : {span.among, NodeSet{}}) {
    if (const auto points = found.find(own); points != found.end()) {
      return {seconds_at(points->second, bytes, 1), false};
    }
  }
  KnownCollective longest = {0, true};
  for (const auto& [among, points] : found) {
    longest.seconds = std::max(longest.seconds, seconds_at(points, bytes, 1));
  }
  return longest;
}

void validate(const Cluster& cluster) {
  if (cluster.nodes.empty()) {
    throw ConfigError("cluster: nodes: found none; describe at least one node");
  }
  for (const DeviceKind& kind : cluster.kinds) {
    if (!positive(kind.memory_bytes)) {
      throw ConfigError(
          str("cluster: devices.",
              kind.name,
              ".memory_gib: found ",
              kind.memory_bytes / (1 << 30),
              "; write the device's memory, more than 0"));
    }
    if (kind.watts > 0 && kind.idle_watts > kind.watts) {
      throw ConfigError(
          str("cluster: devices.",
              kind.name,
              ".idle_watts: found ",
              kind.idle_watts,
              "; write at most its watts, ",
              kind.watts));
    }
    validate_speed(kind);
  }
  for (std::size_t n = 0; n < cluster.nodes.size(); ++n) {
    const Node& node = cluster.nodes[n];
    const std::string place = str("cluster: nodes[", n, "].");
    if (node.count < 1) {
      throw ConfigError(str(place, "count: found ", node.count, "; write 1 or more"));
    }
    if (node.kind < 0 || node.kind >= static_cast<int>(cluster.kinds.size())) {
      throw ConfigError(str(place, "device: is not one of devices"));
    }
    if (node.count > 1 && !positive(node.intra_bytes_per_s)) {
      throw ConfigError(
          str(place,
              "intra_node_gbit_per_s: found ",
              node.intra_bytes_per_s * 8e-9,
              "; the ",
              node.count,
              " devices of this node cannot reach each other; write the "
              "bandwidth between two of them, more than 0"));
    }
    if (cluster.nodes.size() > 1 && !positive(node.inter_bytes_per_s)) {
      throw ConfigError(
          str(place,
              "inter_node_gbit_per_s: found ",
              node.inter_bytes_per_s * 8e-9,
              "; the other nodes cannot be reached from this one; write the "
              "bandwidth of its network, more than 0, or leave the node out"));
    }
    if (node.network_cards < 0) {
      throw ConfigError(
          str(place,
              "network_cards: found ",
              node.network_cards,
              "; write how many the node has, or leave the field out"));
    }
    if (!std::isfinite(node.cores) || node.cores < 0) {
      throw ConfigError(
          str(place,
              "cores: found ",
              node.cores,
              "; write how many processors the node gives, or leave the field out"));
    }
  }
  if (cluster.stalling_group_nodes < 0) {
    throw ConfigError(
        str("cluster: stalling_group_nodes: found ",
            cluster.stalling_group_nodes,
            "; write over how many nodes a tensor-parallel group stalls, or 0 where none does"));
  }
  validate_hosts(cluster);
  validate_links(cluster);
  validate_groups(cluster);
  for (const CollectiveTime& one : cluster.collectives) {
    if (one.ranks < 2 || one.nodes < 1 || !positive(one.bytes) || !positive(one.seconds)) {
      throw ConfigError(
          str("cluster: collectives: found ",
              one.operation,
              " of ",
              one.ranks,
              " ranks, ",
              one.bytes,
              " bytes in ",
              one.seconds,
              " s; write 2 ranks or more, and bytes and seconds of more than "
              "0"));
    }
    validate_operation(one);
    validate_among(one, static_cast<int>(cluster.nodes.size()));
  }
  for (const GroupWaiting& one : cluster.waiting) {
    if (one.ranks < 2 || !(one.share >= 0) || !std::isfinite(one.share)) {
      throw ConfigError(
          str("cluster: waiting: found a share of ",
              one.share,
              " for groups of ",
              one.ranks,
              " ranks; write 2 ranks or more, and 0 or more"));
    }
  }
}

} // namespace tessera::cost
