#pragma once

#include <string>
#include <vector>

#include "tessera/cost/device_speed.h"

namespace tessera::cost {

/// One kind of device, as all of its name are.
struct DeviceKind {
  std::string name;
  double memory_bytes = 0;
  /// What its own memory reads and writes in a second, as its data sheet says;
  /// 0 when not known (what is bound by it is then left out, see `notes`).
  double memory_bytes_per_s = 0;
  /// Measured by `tessera probe`; empty for described devices.
  DeviceSpeed speed = {};
};

/// A machine: devices of one kind that reach each other faster, or at least
/// without sharing, and one network connection that all of them share.
struct Node {
  int kind = 0; // index into Cluster::kinds
  int count = 0; // devices
  double intra_bytes_per_s = 0; // between two devices of the node
  double inter_bytes_per_s = 0; // the node's connection, each direction
  /// Devices that can compute at full speed at one time: ranks of a host share
  /// its cores. 0: all of them.
  double cores = 0;
  /// From sending to receiving between two of its devices; 0: not measured.
  double latency_seconds = 0;
  std::string host = ""; // of a measured node
};

/// What two nodes reach between each other where that is not what their
/// connections allow.
struct NodeLink {
  int first = 0;
  int second = 0;
  double bytes_per_s = 0;
  double latency_seconds = 0;
};

/// A collective, measured with all groups of its size at work at one time.
struct CollectiveTime {
  std::string operation; // "all_reduce", "all_gather", ...
  int ranks = 0;
  int nodes = 1; // that a group spans
  double bytes = 0; // of the tensor on one rank before it, as f32
  double seconds = 0;
};

/// How sure a measured cluster file is. Spreads: how far apart the two best
/// rounds are of the quantity where they are furthest, as a share of the best.
struct ProbeQuality {
  int rounds = 0; // of every quantity; 0: the file does not say
  int repeated = 0; // further ones, where rounds disagreed
  double compute_spread = 0;
  double link_spread = 0;
  double collective_spread = 0;
};

/// Devices are numbered node by node in the order of `nodes`.
struct Cluster {
  std::string name;
  std::vector<DeviceKind> kinds;
  std::vector<Node> nodes;
  std::vector<NodeLink> links = {};
  std::vector<CollectiveTime> collectives = {};
  /// Whether bandwidths were measured as payload (else they are nominal).
  bool measured = false;
  ProbeQuality quality = {};

  int device_count() const;
  /// Per device: the node it is in.
  std::vector<int> node_of_device() const;
  /// Bytes per second between two different nodes, one way, for one flow.
  double between(int first, int second) const;
  /// The longest measured latency; 0 when none was measured.
  double latency_seconds() const;
  /// Seconds of a measured collective at this size, interpolated between
  /// sizes; 0 when it was not measured for so many ranks and nodes.
  double collective_seconds(const std::string& operation, int ranks, int nodes, double bytes) const;
};

/// Throws: ConfigError naming the node, what was found and what to write: no
/// node, no device, a bandwidth or a memory that is not a positive number.
void validate(const Cluster& cluster);

} // namespace tessera::cost
