#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tessera/cost/strategy_cost.h"
#include "tessera/schedule/schedule.h"
#include "tessera/timeline/timeline.h"

namespace tessera::simulator {

struct SimulationOptions {
  /// The order of a "custom" schedule (see schedule::parse_order).
  std::vector<schedule::Action> custom_order = {};
  /// Keeps the events in the result. The other results do not depend on it.
  bool keep_events = true;
  /// Simulates replicas that are alike once, which gives the same result to the bit. Where tasks
  /// vary or events are kept, each is simulated all the same.
  bool alike_once = true;
  /// By how much the computation of a task differs from its estimate: the standard deviation of
  /// the logarithm of a factor of mean 1 that every rank draws for every task. 0: not at all.
  double jitter = 0;
  std::uint64_t seed = 0; // of these draws
  /// Device -> how many times as long its computation takes; devices that are not there take once.
  std::map<int, double> slow_devices = {};
  cost::Constants constants = {};
};

struct MemorySample {
  double time_us = 0;
  double bytes = 0;
};

struct SimulationResult {
  double iteration_seconds = 0;
  /// In which range the measured seconds lie, by the residuals of estimates (cost::seconds_range).
  cost::Range seconds_range = {};
  /// The share of (ranks x span of forwards and backwards) in which ranks ran neither, as
  /// timeline::bubble_share computes it.
  double bubble_share = 0;
  /// For each virtual rank, the peak bytes of tensors, and the bytes a device needs for them, which
  /// add context and fragmentation.
  std::vector<double> memory_high_water;
  std::vector<double> needed_bytes;
  /// For each stage of replica 0, the bytes while each task runs, and behind it.
  std::vector<std::vector<MemorySample>> memory_over_time;
  /// How many replicas were simulated, how many tasks they ran, and how many rates of flows were
  /// computed for them: what the simulation cost.
  int simulated_replicas = 0;
  std::int64_t tasks = 0;
  std::int64_t computed_rates = 0;
  /// The events of one iteration on every virtual rank, with origin "simulated".
  timeline::Timeline timeline;
};

/// Returns for each virtual rank of a strategy the rank that a run has where it is: the place of
/// its device among those that are used. Events of a simulation are of these ranks.
std::vector<int> run_ranks(const cost::Strategy& strategy);

/// Executes one iteration of a strategy on a described cluster event by event.
///
/// A stage of a replica runs one task at a time and prefers backwards that are ready, the lowest
/// microbatch first. The schedule decides what stage 0 starts, and when the last stage starts
/// backwards, as in the runtime. Activations and their gradients travel while stages compute. Flows
/// that use a node's network, the link between two nodes, or what a device sends or receives inside
/// its node at the same time share it max-min fairly, and rates change whenever a flow starts or
/// ends. The gradients of a stage are reduced in buckets as the last backward of its replicas fills
/// them (with overlap_gradients; where ranks share cores, when it has ended) or when every stage
/// has ended (without); then follow the gradients of shared parameters, then the optimizer step,
/// then, of a divided state that overlaps, the updated parameters. Tensor-parallel ranks run in
/// step; their all-reduces are part of the task, at the bandwidth that cost::place gives them.
///
/// Replicas may take unlike numbers of samples (Strategy::replica_microbatch).
///
/// Replicas that are alike (the same work over links that are used alike) are simulated once, where
/// tasks do not vary: all of them do the same at the same time (decision 137).
///
/// Cost: O(tasks x flows of a node) time, of the replicas that differ.
/// Throws: ConfigError as cost::price, for a schedule that deadlocks, a jitter below 0, and a slow
/// device that is not there or takes no time.
/// Source: Karakus et al. 2021, section 4.3 (schedules, preference for backwards); Li et al. 2022,
/// section 3.4 (what a strategy costs).
SimulationResult simulate(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const cost::Strategy& strategy,
    const SimulationOptions& options = {});

} // namespace tessera::simulator
