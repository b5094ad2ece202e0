#pragma once

#include <string>

namespace tessera::cost {

/// The time of one step of a collective: to another node, and to another device of the node.
struct StepSeconds {
  double between = 0;
  double inside = 0;
};

/// What a collective costs on the slowest link of its group: bytes, and steps of one
/// latency each; or seconds, if it was measured.
struct Traffic {
  double wire_bytes = 0;
  double steps = 0; // between nodes
  double inside_steps = 0;
  double seconds = 0;

  Traffic operator-(const Traffic& other) const {
    return {
        wire_bytes - other.wire_bytes,
        steps - other.steps,
        inside_steps - other.inside_steps,
        seconds - other.seconds};
  }
  void add(const Traffic& other) {
    wire_bytes += other.wire_bytes;
    steps += other.steps;
    inside_steps += other.inside_steps;
    seconds += other.seconds;
  }
  /// Returns it as often as that.
  Traffic times(double count) const {
    return {wire_bytes * count, steps * count, inside_steps * count, seconds * count};
  }
  /// Returns the seconds of the steps alone.
  double latency(const StepSeconds& step) const {
    return steps * step.between + inside_steps * step.inside;
  }
  /// Returns the seconds on a link of this bandwidth.
  double seconds_at(double bytes_per_s, const StepSeconds& step) const {
    return seconds + wire_bytes / bytes_per_s + latency(step);
  }
};

/// Returns the traffic of one collective of n = `ranks` ranks on so many nodes by ring algorithms,
/// where `bytes` is the size of one rank's input. An all-reduce sends 2 (n - 1) / n of it in
/// 2 (n - 1) steps; a broadcast, and a panel on a mesh, sends all of it in one. All links of a ring
/// take part in each step, so over several nodes all steps are as long as those between nodes.
/// Source: Li et al. 2022, equation (3).
Traffic ring_traffic(const std::string& operation, int ranks, int nodes, double bytes);

/// Returns the traffic of an all-reduce in two levels: a chain inside each node, and between nodes
/// two trees that carry one half each, up and down. It has the fewest steps, and its bytes go at
/// `bandwidth_share` of a ring's rate. Source: NCCL, src/graph/tuning.cc.
Traffic tree_traffic(int ranks, int nodes, double bytes, double bandwidth_share);

} // namespace tessera::cost
