#pragma once

// The JSON form of clusters, written by hand or by `tessera probe`. Private to the planner.

#include <algorithm>
#include <optional>

#include "tessera/base/json/kinds.h"
#include "tessera/base/text.h"
#include "tessera/cost/cluster.h"
#include "tessera/cost/data_sheets.h"

namespace tessera::form {

template <>
struct Custom<cost::MeasuredPoint> {
  static bool read(const OrderedJson& found, cost::MeasuredPoint& into) {
    const bool numbers =
        found.is_array() && std::all_of(found.begin(), found.end(), [](const OrderedJson& value) {
          return value.is_number();
        });
    if (!numbers || found.size() < 2 || found.size() > 3) {
      return false;
    }
    into = {
        found[0].get<double>(),
        found[1].get<double>(),
        found.size() == 3 ? found[2].get<double>() : 0};
    return true;
  }
  static OrderedJson write(const cost::MeasuredPoint& point) {
    OrderedJson list = OrderedJson::array({point.size, point.seconds});
    if (point.backward_seconds > 0) {
      list.push_back(point.backward_seconds);
    }
    return list;
  }
  static std::string allowed() {
    return "[size, seconds] or [size, seconds, backward seconds], all of them numbers";
  }
  static OrderedJson schema() {
    return {
        {"type", "array"},
        {"description",
         "[size, seconds] or [size, seconds, seconds of the backward], in order of size; sizes are "
         "elements, of products rows"},
        {"items", {{"type", "number"}, {"exclusiveMinimum", 0}}},
        {"minItems", 2},
        {"maxItems", 3}};
  }
};

} // namespace tessera::form

namespace tessera::cost {

inline constexpr double kBytesPerGigabit = 1e9 / 8;
inline constexpr double kBytesPerGib = 1024.0 * 1024.0 * 1024.0;

template <typename Visit>
void describe_speed(Visit& visit, DeviceSpeed& speed) {
  const auto points = [&](const char* name, const char* doc, auto& of, auto... choices) {
    visit(
        {.name = name, .doc = doc, .presence = form::Presence::kIfSaid, .choices = {choices...}},
        of);
  };
  points(
      "product_seconds",
      "measured: products of square matrices of this many rows",
      speed.products,
      "f32",
      "bf16");
  points(
      "batched_product_seconds",
      "measured: one of the products of an operator that makes many small ones",
      speed.batched_products,
      "f32",
      "bf16");
  points(
      "weight_seconds",
      "measured, one point: what reading a weight of so many elements from memory adds to a "
      "product",
      speed.weights);
  points("move_seconds", "measured: moving so many elements", speed.moves);
  points("function_seconds", "measured: a function of so many elements", speed.functions);
  points("random_seconds", "measured: drawing so many elements", speed.random);
  points(
      "operator_seconds",
      "measured: operators by name, where these are not as the examples above",
      speed.operators);
}

/// What offloading and the objectives "cost" and "energy" need.
template <typename Visit>
void describe_host_and_costs(Visit& visit, DeviceKind& kind) {
  const auto amount = [&](const char* name, const char* doc, double& of, double unit) {
    visit(
        {.name = name,
         .doc = doc,
         .bounds = form::more_than(0),
         .presence = form::Presence::kIfSaid,
         .unit = unit},
        of);
  };
  amount(
      "host_gb_per_s",
      "between the device and its host's memory, each direction; needed for offloading",
      kind.host_bytes_per_s,
      1e9);
  amount(
      "host_memory_gib",
      "of the host's memory that one device may fill; needed for offloading",
      kind.host_memory_bytes,
      kBytesPerGib);
  amount("price_per_hour", "of one device, in any currency", kind.price_per_hour, 1);
  amount("watts", "that one device draws at work", kind.watts, 1);
  amount("idle_watts", "that it draws while it waits; as at work if not said", kind.idle_watts, 1);
}

template <typename Visit>
void describe(Visit& visit, DeviceKind& kind) {
  visit(
      {.name = "memory_gib", .bounds = form::more_than(0), .unit = kBytesPerGib},
      kind.memory_bytes);
  visit(
      {.name = "memory_gb_per_s",
       .doc = "bandwidth of the device's memory; not needed for devices the planner knows by name",
       .bounds = form::more_than(0),
       .presence = form::Presence::kIfSaid,
       .unit = 1e9},
      kind.memory_bytes_per_s);
  visit(
      {.name = "update_gb_per_s",
       .doc = "bytes of a second that an optimizer's update reaches, measured; not needed, since "
              "else memory_gb_per_s bounds it",
       .bounds = form::more_than(0),
       .presence = form::Presence::kIfSaid,
       .unit = 1e9},
      kind.update_bytes_per_s);
  visit(
      {.name = "launch_us",
       .doc =
           "time in which the device's host launches one operator of a layer, the mean of forward "
           "and "
           "backward with what autograd takes; not needed for devices the planner knows by name or "
           "that were probed",
       .bounds = form::more_than(0),
       .presence = form::Presence::kIfSaid,
       .unit = 1e-6},
      kind.launch_seconds);
  visit(
      {.name = "product_tflops",
       .doc =
           "that large products reach in 16 bits, for models without measured seconds; not needed "
           "for devices the planner knows by name",
       .bounds = form::more_than(0),
       .presence = form::Presence::kIfSaid,
       .unit = 1e12},
      kind.product_flops_per_s);
  visit(
      {.name = "attention_tflops",
       .doc =
           "that the forward of attention in one kernel reaches in 16 bits, for models without "
           "measured seconds; a causal mask's half of the scores counts; not needed, since else it "
           "follows from the products'",
       .bounds = form::more_than(0),
       .presence = form::Presence::kIfSaid,
       .unit = 1e12},
      kind.attention_flops_per_s);
  visit(
      {.name = "profiled_gbit_per_s",
       .doc =
           "between two devices of a node, where the divided layers of a measured model ran; not "
           "needed for the T4s and V100s of the AMP paper",
       .bounds = form::more_than(0),
       .presence = form::Presence::kIfSaid,
       .unit = kBytesPerGigabit},
      kind.profiled_bytes_per_s);
  describe_host_and_costs(visit, kind);
  describe_speed(visit, kind.speed);
  if constexpr (Visit::kReads) {
    if (kind.profiled_bytes_per_s == 0 && !kind.speed.measured()) {
      kind.profiled_bytes_per_s = known_profiled_bandwidth(kind.name);
    }
    if (kind.memory_bytes_per_s == 0) {
      kind.memory_bytes_per_s = known_memory_bandwidth(kind.name);
    }
    if (kind.launch_seconds == 0 && !kind.speed.measured()) {
      kind.launch_seconds = known_launch_seconds(kind.name);
    }
  }
}

/// The file names a node's device; in memory it is an index into `kinds`.
template <typename Visit>
void describe_device(Visit& visit, Node& node, const std::vector<DeviceKind>& kinds) {
  const auto known = static_cast<std::size_t>(node.kind) < kinds.size();
  std::string device = known ? kinds[static_cast<std::size_t>(node.kind)].name : "";
  visit({.name = "device"}, device);
  const auto found = std::find_if(
      kinds.begin(), kinds.end(), [&](const DeviceKind& kind) { return kind.name == device; });
  visit.check([&] {
    if (found != kinds.end()) {
      return std::string();
    }
    std::vector<std::string> names;
    for (const DeviceKind& kind : kinds) {
      names.push_back(kind.name);
    }
    return str(
        "'device': found \"",
        device,
        "\", which devices does not describe",
        names.empty() ? std::string() : str("; the nearest is \"", nearest(device, names), "\""));
  });
  if constexpr (Visit::kReads) {
    node.kind = static_cast<int>(found - kinds.begin());
  }
}

template <typename Visit>
void describe(Visit& visit, Node& node, const std::vector<DeviceKind>& kinds = {}) {
  using enum form::Presence;
  describe_device(visit, node, kinds);
  visit({.name = "count", .bounds = form::between(1, 1 << 20)}, node.count);
  visit({.name = "host", .presence = kIfSaid}, node.host);
  visit(
      {.name = "intra_node_gbit_per_s",
       .doc = "between two devices of the node; needed where there are two",
       .bounds = form::at_least(0),
       .presence = kIfSaid,
       .unit = kBytesPerGigabit},
      node.intra_bytes_per_s);
  visit(
      {.name = "inter_node_gbit_per_s",
       .doc =
           "of the node's network, each direction, shared by its devices; needed where there are "
           "several nodes",
       .bounds = form::at_least(0),
       .presence = kIfSaid,
       .unit = kBytesPerGigabit},
      node.inter_bytes_per_s);
  visit(
      {.name = "stream_gbit_per_s",
       .doc = "the most that one stream between a device and another node carries; the network's "
              "when not given",
       .bounds = form::more_than(0),
       .presence = kIfSaid,
       .unit = kBytesPerGigabit},
      node.stream_bytes_per_s);
  visit(
      {.name = "network_cards",
       .doc = "among which the network is divided: a stream goes through one of them, a collective "
              "through as many as it has ranks on the node; one connection when not given",
       .bounds = form::between(0, 1 << 20),
       .presence = kIfSaid},
      node.network_cards);
  visit(
      {.name = "cores",
       .doc = "devices that compute at full speed at one time, where they share processor cores",
       .bounds = form::at_least(0),
       .presence = kIfSaid},
      node.cores);
  visit(
      {.name = "latency_us",
       .doc =
           "of a message between two of its devices, and, where nothing was measured, of one step "
           "of a collective among them; when not given 20, and 5 for such a step where "
           "network_latency_us is given",
       .bounds = form::more_than(0),
       .presence = kIfSaid,
       .unit = 1e-6},
      node.latency_seconds);
  visit(
      {.name = "network_latency_us",
       .doc = "of one step of a collective to another node; 20 when not given. Messages between "
              "stages take the latency_us of 'links'",
       .bounds = form::more_than(0),
       .presence = kIfSaid,
       .unit = 1e-6},
      node.network_latency_seconds);
}

template <typename Visit>
void describe(Visit& visit, NodeLink& link) {
  std::vector<int> nodes = {link.first, link.second};
  visit(
      {.name = "nodes", .doc = "the numbers of two nodes", .bounds = form::between(0, 1 << 20)},
      nodes);
  visit.check([&] { return nodes.size() == 2 ? "" : "'nodes' must be the numbers of two nodes"; });
  if constexpr (Visit::kReads) {
    if (nodes.size() == 2) {
      link.first = nodes[0];
      link.second = nodes[1];
    }
  }
  constexpr form::Bounds kNotNegative = form::at_least(0);
  visit({.name = "gbit_per_s", .bounds = kNotNegative, .unit = kBytesPerGigabit}, link.bytes_per_s);
  visit(
      {.name = "latency_us",
       .doc =
           "of a message between stages on the two; 20 when not given. Steps of collectives take "
           "network_latency_us",
       .bounds = form::more_than(0),
       .presence = form::Presence::kIfSaid,
       .unit = 1e-6},
      link.latency_seconds);
}

template <typename Visit>
void describe(Visit& visit, NodeGroup& group) {
  visit(
      {.name = "nodes",
       .doc = "the numbers of its nodes, ascending",
       .bounds = form::between(0, 1 << 20)},
      group.nodes);
  visit(
      {.name = "gbit_per_s",
       .doc = "of what leads out of the group's switch, each direction",
       .bounds = form::more_than(0),
       .unit = kBytesPerGigabit},
      group.bytes_per_s);
}

template <typename Visit>
void describe(Visit& visit, GroupWaiting& one) {
  visit({.name = "ranks", .bounds = form::at_least(2)}, one.ranks);
  visit({.name = "share", .bounds = form::at_least(0)}, one.share);
}

template <typename Visit>
void describe(Visit& visit, CollectiveTime& time) {
  visit({.name = "operation"}, time.operation);
  visit({.name = "ranks", .bounds = form::at_least(2)}, time.ranks);
  visit({.name = "nodes", .bounds = form::at_least(1)}, time.nodes);
  visit({.name = "bytes", .bounds = form::more_than(0)}, time.bytes);
  visit({.name = "seconds", .bounds = form::more_than(0)}, time.seconds);
  visit(
      {.name = "among",
       .doc = "the numbers of these nodes, ascending; without it the seconds hold for any as many",
       .bounds = form::between(0, 1 << 20),
       .presence = form::Presence::kIfSaid},
      time.among);
}

template <typename Visit>
void describe(Visit& visit, ProbeQuality& quality) {
  visit({.name = "rounds", .bounds = form::between(1, 1 << 20)}, quality.rounds);
  visit({.name = "repeated", .bounds = form::between(0, 1 << 30)}, quality.repeated);
  constexpr form::Bounds kNotNegative = form::at_least(0);
  visit({.name = "compute_spread", .bounds = kNotNegative}, quality.compute_spread);
  visit({.name = "link_spread", .bounds = kNotNegative}, quality.link_spread);
  visit({.name = "collective_spread", .bounds = kNotNegative}, quality.collective_spread);
  visit(
      {.name = "inferred",
       .doc = "nodes and links that were not measured and have the median of similar ones",
       .bounds = form::between(0, 1 << 30),
       .presence = form::Presence::kIfSaid},
      quality.inferred);
  visit(
      {.name = "foreign_processors",
       .doc = "processors that other programs used meanwhile, where that was most",
       .bounds = kNotNegative,
       .presence = form::Presence::kIfSaid},
      quality.foreign_processors);
}

template <typename Visit>
void describe(Visit& visit, Cluster& cluster) {
  using enum form::Presence;
  visit.define("cluster");
  visit({.name = "name"}, cluster.name);
  visit(
      {.name = "measured",
       .doc = "bandwidths are payload, as tessera probe measures them",
       .presence = kOptional},
      cluster.measured);
  visit(
      {.name = "busy_start_us",
       .doc = "for which a host is busy with one rank of a collective that it starts, while "
              "pipelines send between nodes",
       .bounds = form::at_least(0),
       .presence = kIfSaid,
       .unit = 1e-6},
      cluster.busy_start_seconds);
  visit(
      {.name = "busy_network_start_us",
       .doc = "the same of a collective over several nodes; as inside a node when not given",
       .bounds = form::at_least(0),
       .presence = kIfSaid,
       .unit = 1e-6},
      cluster.busy_network_start_seconds);
  visit(
      {.name = "stalling_group_nodes",
       .doc = "pipelines that send between nodes stall too if tensor-parallel groups span so many",
       .bounds = form::between(0, 1 << 20),
       .presence = kIfSaid},
      cluster.stalling_group_nodes);
  visit(
      {.name = "stalling_share",
       .doc =
           "of nodes whose network stalls; a job is priced with stalls where most jobs on as many "
           "nodes have one",
       .bounds = form::between(0, 1),
       .presence = kIfSaid},
      cluster.stalling_share);
  visit(
      {.name = "stall_us",
       .doc = "for which every message of a pipeline and every microbatch then waits",
       .bounds = form::at_least(0),
       .presence = kIfSaid,
       .unit = 1e-6},
      cluster.stall_seconds);
  std::optional<ProbeQuality> quality;
  if (cluster.quality.rounds > 0) {
    quality = cluster.quality;
  }
  visit(
      {.name = "probe",
       .doc =
           "how often tessera probe measured, and how far the two best rounds are apart at most, "
           "as a share of the best",
       .presence = kIfSaid},
      quality);
  if constexpr (Visit::kReads) {
    cluster.quality = quality.value_or(ProbeQuality{});
  }
  form::ByName<DeviceKind> devices{cluster.kinds, &DeviceKind::name};
  visit({.name = "devices", .not_empty = true}, devices);
  visit({.name = "nodes", .not_empty = true}, cluster.nodes, cluster.kinds);
  visit(
      {.name = "links",
       .doc = "what two nodes reach between each other, where their networks alone do not say it",
       .presence = kIfSaid},
      cluster.links);
  visit(
      {.name = "groups",
       .doc = "nodes behind a switch whose way to the other nodes all of them share; a group may "
              "hold others, so networks have any number of levels",
       .presence = kIfSaid},
      cluster.groups);
  visit(
      {.name = "collectives",
       .doc = "measured, all groups of the size at work at one time",
       .presence = kIfSaid},
      cluster.collectives);
  visit(
      {.name = "waiting",
       .doc = "by what share ranks of groups compute longer where they wait for each other between "
              "layers",
       .presence = kIfSaid},
      cluster.waiting);
}

} // namespace tessera::cost
