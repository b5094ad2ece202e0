#pragma once

#include <string>
#include <vector>

#include "tessera/cost/strategy_cost.h"
#include "tessera/schedule/schedule.h"
#include "tessera/timeline/timeline.h"

namespace tessera::simulator {

struct SimulationOptions {
  /// Order of a "custom" schedule (see schedule::parse_order).
  std::vector<schedule::Action> custom_order = {};
  /// Whether events are kept; figures are the same without.
  bool keep_events = true;
  cost::Constants constants = {};
};

struct MemorySample {
  double time_us = 0;
  double bytes = 0;
};

struct SimulationResult {
  double iteration_seconds = 0;
  /// As timeline::bubble_share: share of (ranks x span of forwards and
  /// backwards) in which ranks ran neither.
  double bubble_share = 0;
  /// Per virtual rank: most bytes of tensors, and what the device needs for
  /// them with context and fragmentation.
  std::vector<double> memory_high_water;
  std::vector<double> needed_bytes;
  /// Per stage of replica 0: bytes after every change.
  std::vector<std::vector<MemorySample>> memory_over_time;
  /// Events of one iteration on every virtual rank, origin "simulated".
  timeline::Timeline timeline;
};

/// Executes one iteration of a strategy on a described cluster event by event.
///
/// A replica's stage runs one task at a time and prefers backwards that are
/// ready, the lowest microbatch first; the schedule decides what stage 0 starts
/// and when the last stage turns round, as in the runtime. Activations and
/// gradients of activations travel while stages compute; flows that use a
/// node's network at the same time share it evenly, and rates change whenever a
/// flow starts or ends. The gradients of a stage are reduced when the last
/// replica's stage has ended (with overlap_gradients) or when every stage has
/// (without); then those of shared parameters; then the optimizer steps.
/// Tensor-parallel ranks go in step; their all-reduces are part of the task,
/// at the bandwidth cost::place gives them.
///
/// Cost: O(tasks x flows of a node) time.
/// Throws: ConfigError as cost::price and for a schedule that stands still.
/// Source: Karakus et al. 2021, section 4.3 (schedules, preference for
/// backwards); Li et al. 2022, section 3.4 (what a strategy costs).
SimulationResult simulate(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const cost::Strategy& strategy,
    const SimulationOptions& options = {});

} // namespace tessera::simulator
