#pragma once

#include <compare>
#include <optional>
#include <string>
#include <vector>

#include "tessera/cost/device_speed.h"

namespace tessera::cost {

/// A kind of device; all devices of one name are of one kind.
struct DeviceKind {
  std::string name;
  double memory_bytes = 0;
  /// Bandwidth of its own memory; 0 when not known. The time of the optimizer step, which it
  /// bounds, is then left out of estimates.
  double memory_bytes_per_s = 0;
  /// Bytes of a second as Constants::optimizer_traffic_bytes counts them, measured in updates,
  /// which find some of them in caches; 0: as memory_bytes_per_s says.
  double update_bytes_per_s = 0;
  /// Time in which its host launches one operator of a layer, the mean of forward and backward with
  /// what autograd takes; 0 when not known.
  double launch_seconds = 0;
  /// Operations a second that large products reach; 0: as data sheets say.
  double product_flops_per_s = 0;
  /// Operations a second that the forward of attention in one kernel reaches; 0: as
  /// Constants::attention_share says.
  double attention_flops_per_s = 0;
  /// Bandwidth between two devices of a node where measured layers were divided; 0: not known, and
  /// taken to be that of the nodes that the cluster has.
  double profiled_bytes_per_s = 0;
  /// Measured by `tessera probe`; empty for devices that somebody described.
  DeviceSpeed speed = {};
  /// Between the device and its host's memory, each direction; 0: not known.
  double host_bytes_per_s = 0;
  /// The part of its host's memory that the device may fill; 0: not known.
  double host_memory_bytes = 0;
  double price_per_hour = 0; // of one device, in any currency; 0: not known
  double watts = 0; // that it draws at work; 0: not known
  double idle_watts = 0; // while it waits; 0: as at work
};

/// A machine: devices of one kind, links between them that no other pair uses, and
/// one network connection that all of them share.
struct Node {
  int kind = 0; // index into Cluster::kinds
  int count = 0; // devices
  double intra_bytes_per_s = 0; // between two devices of the node
  double inter_bytes_per_s = 0; // the node's connection, each direction
  /// The most that one stream between a device of it and another node carries; 0: as much as the
  /// connection does.
  double stream_bytes_per_s = 0;
  /// Network cards, among which its devices' streams are divided: a stream goes through one of
  /// them, a collective through as many as it has ranks here. 0: one connection.
  int network_cards = 0;
  /// Number of devices that can compute at full speed at the same time, if they are
  /// ranks that share processor cores. 0: all of them.
  double cores = 0;
  /// Time from sending to receiving between two of its devices; 0: not measured.
  double latency_seconds = 0;
  /// Time of one step of a collective to another node; 0: Constants::link_latency_seconds.
  double network_latency_seconds = 0;
  std::string host = ""; // name; "" for a node that was not measured
};

/// Returns the most that one stream through a node's network carries.
double stream_bytes_per_s(const Node& node);

/// Returns the most that a collective with so many ranks on a node carries through its network: a
/// ring for each network card that its ranks reach, one where cards are not told apart.
double collective_bytes_per_s(const Node& node, int ranks);

/// The link between two nodes, if it differs from what their network connections allow. All flows
/// between the two share it, separately in each direction.
struct NodeLink {
  int first = 0;
  int second = 0;
  double bytes_per_s = 0;
  double latency_seconds = 0;
};

/// Numbers of nodes, ascending, each once.
using NodeSet = std::vector<int>;

/// Nodes behind one switch. All that flows between them and other nodes shares what leads out of
/// it, separately in each direction. Groups of groups are networks of more levels.
struct NodeGroup {
  NodeSet nodes = {};
  double bytes_per_s = 0; // out of the group, each direction
};

/// A collective, measured while all groups of its size ran it at the same time.
struct CollectiveTime {
  std::string operation; // "all_reduce", "all_gather", ...
  int ranks = 0;
  int nodes = 1; // that one group spans
  double bytes = 0; // of one rank's input, an f32 tensor
  double seconds = 0;
  /// The nodes that the group spans. Empty: the figure holds for any `nodes` nodes.
  NodeSet among = {};
};

/// By what share ranks of a group compute longer where they wait for each other between layers:
/// those that share cores do not end at the same time.
struct GroupWaiting {
  int ranks = 0;
  double share = 0;
};

/// The nodes that a group of ranks spans, as far as measured collectives distinguish them.
struct Span {
  int count = 1;
  NodeSet among = {}; // empty: nothing was measured among exactly these nodes

  auto operator<=>(const Span&) const = default;
};

/// What measurements say of a collective.
struct KnownCollective {
  double seconds = 0; // 0: nothing
  /// Whether the seconds are those of other nodes, whose links may be faster.
  bool elsewhere = false;
};

/// The quality of a measured cluster file. A spread is the difference between the two
/// best rounds as a share of the best, of the quantity in which it is largest.
struct ProbeQuality {
  int rounds = 0; // of every quantity; 0: not known
  int repeated = 0; // additional rounds of quantities whose rounds disagreed
  double compute_spread = 0;
  double link_spread = 0;
  double collective_spread = 0;
  /// Number of nodes and links that were not measured and have the median of similar ones.
  int inferred = 0;
  /// Processors that other programs used while the probe ran, on average, on the machine where that
  /// was most; nullopt: not known.
  std::optional<double> foreign_processors = {};
};

/// The machines that a model is trained on. Devices are numbered node by node in the
/// order of `nodes`.
struct Cluster {
  std::string name;
  std::vector<DeviceKind> kinds;
  std::vector<Node> nodes;
  std::vector<NodeLink> links = {};
  /// Two of them share no node, or one holds the other.
  std::vector<NodeGroup> groups = {};
  std::vector<CollectiveTime> collectives = {};
  std::vector<GroupWaiting> waiting = {};
  /// Whether bandwidths are measured payload; otherwise they are nominal.
  bool measured = false;
  /// Time for which a host is busy with one rank of a collective that it starts, if pipelines send
  /// between nodes: its network library then polls for their messages as well. 0: none.
  double busy_start_seconds = 0;
  /// The same of a collective over several nodes, which the network library carries too. 0: as
  /// inside a node.
  double busy_network_start_seconds = 0;
  /// Share of nodes whose network stalls, and for how long each message of a pipeline and each
  /// microbatch then waits. A job is priced with stalls where most jobs of its nodes have one.
  double stalling_share = 0;
  /// Pipelines that send between nodes stall too if tensor-parallel groups span so many nodes. 0:
  /// none do.
  int stalling_group_nodes = 0;
  double stall_seconds = 0;
  ProbeQuality quality = {};

  int device_count() const;
  /// Returns for each device the node it is in.
  std::vector<int> node_of_device() const;
  /// Returns bytes per second between two different nodes, one way, when nothing else flows.
  double between(int first, int second) const;
  /// Returns whether a job on all nodes has more likely than not one that stalls.
  bool stalls() const;
  /// Returns the first `count` nodes of it, with the links between them.
  /// Throws: ConfigError when it has fewer.
  Cluster first_nodes(int count) const;
  /// Returns the longest measured latency; 0 when none was measured.
  double latency_seconds() const;
  /// Returns GroupWaiting::share of groups of so many ranks; 0 when it was not measured.
  double waiting_share(int ranks) const;
  /// Returns the span of a group on these nodes.
  Span span_of(const NodeSet& nodes) const;
  /// Returns what was measured of a collective, interpolated between sizes: among these nodes; if
  /// nothing was, for any nodes of their number; if nothing was either, the longest time among
  /// other nodes of that number.
  KnownCollective
  collective(const std::string& operation, int ranks, const Span& span, double bytes) const;
};

/// Returns the groups of a part of a cluster that has these of its nodes, in this order: what is
/// left of each.
std::vector<NodeGroup> groups_among(
    const std::vector<NodeGroup>& groups,
    const std::vector<int>& nodes);

/// Checks a cluster. Throws: ConfigError, naming the place, what was found and what to
/// write, for no node, no device, a bandwidth, a memory or a measured time that is
/// not a positive number, and links and points that do not belong together.
void validate(const Cluster& cluster);

} // namespace tessera::cost
