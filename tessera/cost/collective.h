#pragma once

#include <string>

namespace tessera::cost {

/// What a collective puts on the slowest link of its group: bytes, and steps
/// with a latency each; or seconds, where it was measured.
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
  /// Units: seconds, bytes per second.
  double seconds_at(double bytes_per_s, double latency_seconds) const {
    return seconds + wire_bytes / bytes_per_s + steps * latency_seconds;
  }
};

/// One collective of `ranks` ranks in rings; `bytes` are those of one rank's
/// tensor before it. An all-reduce sends 2 (n - 1) / n of them in 2 (n - 1)
/// steps; a broadcast, and a panel of a mesh, sends all of them in one.
/// Source: Li et al. 2022, equation (3).
Traffic ring_traffic(const std::string& operation, int ranks, double bytes);

} // namespace tessera::cost
