#pragma once

#include <string>

namespace tessera::cost {

/// What a collective costs on the slowest link of its group: bytes, and steps of one
/// latency each; or seconds, if it was measured.
struct Traffic {
  double wire_bytes = 0;
  double steps = 0;
  double seconds = 0;

  Traffic operator-(const Traffic& other) const {
    return {wire_bytes - other.wire_bytes, steps - other.steps, seconds - other.seconds};
  }
  void add(const Traffic& other) {
    wire_bytes += other.wire_bytes;
    steps += other.steps;
    seconds += other.seconds;
  }
  /// Returns the seconds on a link of this bandwidth and latency.
  double seconds_at(double bytes_per_s, double latency_seconds) const {
    return seconds + wire_bytes / bytes_per_s + steps * latency_seconds;
  }
};

/// Returns the traffic of one collective of n = `ranks` ranks by ring algorithms, where
/// `bytes` is the size of one rank's input. An all-reduce sends 2 (n - 1) / n of it in
/// 2 (n - 1) steps; a broadcast, and a panel on a mesh, sends all of it in one.
/// Source: Li et al. 2022, equation (3).
Traffic ring_traffic(const std::string& operation, int ranks, double bytes);

} // namespace tessera::cost
