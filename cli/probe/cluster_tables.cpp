#include "cli/probe/cluster_tables.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "tessera/autotune/probe/rounds.h"

#include "cli/formatted.h"

namespace tessera::cli {

namespace {

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;

} // namespace

std::string to_tables(const cost::Cluster& cluster) {
  std::string text = cluster.name + "\n";
  for (const cost::DeviceKind& kind : cluster.kinds) {
    text += formatted_line(
        "%s: %.1f GiB free a rank, %.1f GB/s of memory while all ranks move",
        kind.name.c_str(),
        kind.memory_bytes / kGib,
        kind.memory_bytes_per_s * 1e-9);
    for (const auto& [precision, points] : kind.speed.products) {
      text += formatted_line("  products of size n in %s, GFLOP/s:", precision.c_str());
      text += "   ";
      for (const cost::MeasuredPoint& point : points) {
        char cell[48];
        std::snprintf(
            cell,
            sizeof cell,
            " %g: %.1f",
            point.size,
            2e-9 * std::pow(point.size, 3) / point.seconds);
        text += cell;
      }
      text += "\n";
    }
  }
  for (std::size_t n = 0; n < cluster.nodes.size(); ++n) {
    const cost::Node& node = cluster.nodes[n];
    text += formatted_line(
        "node %zu, %s: %d ranks that compute like %.2f at full speed; inside "
        "%.1f Gbit/s, %.0f us",
        n,
        node.host.c_str(),
        node.count,
        node.cores,
        node.intra_bytes_per_s * 8e-9,
        node.latency_seconds * 1e6);
  }
  for (const cost::NodeLink& link : cluster.links) {
    text += formatted_line(
        "node %d to node %d: %.2f Gbit/s, %.0f us",
        link.first,
        link.second,
        link.bytes_per_s * 8e-9,
        link.latency_seconds * 1e6);
  }
  const cost::ProbeQuality& quality = cluster.quality;
  text += formatted_line(
      "best of %d rounds, %d of them repeated; the two best are at most %.0f "
      "%% "
      "(computation), %.0f %% (links) and %.0f %% (collectives) apart",
      quality.rounds,
      quality.repeated,
      100 * quality.compute_spread,
      100 * quality.link_spread,
      100 * quality.collective_spread);
  if (quality.inferred > 0) {
    text += formatted_line(
        "%d nodes and links were not measured and have the median of similar ones",
        quality.inferred);
  }
  if (quality.foreign_processors.value_or(0) > autotune::kForeignLoad) {
    text += formatted_line(
        "the machine is busy: other programs used %.2f processors meanwhile, so plans on this file "
        "may be off; probe again when it is quiet",
        *quality.foreign_processors);
  } else if (std::max(quality.compute_spread, quality.link_spread) > autotune::kAgreement) {
    text += quality.foreign_processors
                ? "rounds do not agree although other programs were idle: the machine's own speed "
                  "changes (its clock, or other guests of its host), so plans on this file may be "
                  "off\n"
                : "rounds do not agree: the machine is busy or its speed changes, so plans on this "
                  "file may be off; probe again when it is quiet\n";
  }
  for (const cost::CollectiveTime& one : cluster.collectives) {
    if (one.operation == "all_reduce") {
      std::string among;
      for (const int node : one.among) {
        among += (among.empty() ? " (" : ", ") + std::to_string(node);
      }
      text += formatted_line(
          "all_reduce of %.0f KiB over %d ranks on %d nodes%s: %.3f ms",
          one.bytes / 1024,
          one.ranks,
          one.nodes,
          (among.empty() ? among : among + ")").c_str(),
          one.seconds * 1e3);
    }
  }
  return text;
}

} // namespace tessera::cli
