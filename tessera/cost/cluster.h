#pragma once

#include <string>
#include <vector>

namespace tessera::cost {

/// One kind of device, as all of its name are.
struct DeviceKind {
  std::string name;
  double memory_bytes = 0;
  /// What its own memory reads and writes in a second, as its data sheet says;
  /// 0 when not known (what is bound by it is then left out, see `notes`).
  double memory_bytes_per_s = 0;
};

/// A machine: devices of one kind that reach each other faster, or at least
/// without sharing, and one network connection that all of them share.
struct Node {
  int kind = 0; // index into Cluster::kinds
  int count = 0; // devices
  double intra_bytes_per_s = 0; // between two devices of the node
  double inter_bytes_per_s = 0; // the node's connection, each direction
};

/// Devices are numbered node by node in the order of `nodes`.
struct Cluster {
  std::string name;
  std::vector<DeviceKind> kinds;
  std::vector<Node> nodes;

  int device_count() const;
  /// Per device: the node it is in.
  std::vector<int> node_of_device() const;
};

/// Data-sheet bandwidth of a device's memory by its name, without regard to
/// case: "t4", "v100", "a100" ... Returns: bytes per second, 0 when unknown.
double known_memory_bandwidth(const std::string& device_name);

/// Throws: ConfigError naming the node, what was found and what to write: no
/// node, no device, a bandwidth or a memory that is not a positive number.
void validate(const Cluster& cluster);

} // namespace tessera::cost
