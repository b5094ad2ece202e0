#include "tessera/cost/cluster.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::cost {

namespace {

// GB/s, from the makers' data sheets.
constexpr std::array<std::pair<const char*, double>, 9> kMemoryBandwidth = {{
    {"t4", 320},
    {"l4", 300},
    {"p100", 732},
    {"v100", 900},
    {"a10", 600},
    {"a10g", 600},
    {"a100", 1555},
    {"h100", 3350},
    {"h200", 4800},
}};

bool positive(double value) {
  return std::isfinite(value) && value > 0;
}

} // namespace

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
    result.insert(
        result.end(),
        static_cast<std::size_t>(nodes[n].count),
        static_cast<int>(n));
  }
  return result;
}

double known_memory_bandwidth(const std::string& device_name) {
  std::string lower = device_name;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](char c) {
    return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  });
  for (const auto& [name, gigabytes] : kMemoryBandwidth) {
    if (lower == name) {
      return gigabytes * 1e9;
    }
  }
  return 0;
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
  }
  for (std::size_t n = 0; n < cluster.nodes.size(); ++n) {
    const Node& node = cluster.nodes[n];
    const std::string place = str("cluster: nodes[", n, "].");
    if (node.count < 1) {
      throw ConfigError(
          str(place, "count: found ", node.count, "; write 1 or more"));
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
  }
}

} // namespace tessera::cost
