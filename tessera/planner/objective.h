#pragma once

#include <vector>

#include "tessera/planner/candidate.h"
#include "tessera/planner/search_options.h"

namespace tessera::planner {

/// What a step under a strategy takes. Units: seconds, the currency of DeviceKind::price_per_hour,
/// joules.
struct StepCosts {
  double seconds = 0;
  double price = 0; // of all devices that the strategy uses, for the step's seconds
  double joules = 0; // DeviceKind::watts while they compute, idle_watts while they wait
};

/// Returns what a step takes; price and joules are 0 where they are not known of every device that
/// the strategy uses. `cluster` is the one that device_of_rank names the devices of.
StepCosts step_costs(const Candidate& candidate, const cost::Cluster& cluster);

/// Returns the quantity that the objective minimizes.
double value_of(Objective objective, const StepCosts& costs);

/// Checks that the objective is known of every device.
/// Throws: ConfigError that names the device and the field that is missing.
void check_objective(Objective objective, const cost::Cluster& cluster);

/// Returns the Pareto front of the candidates: those than which no other is better in one known
/// quantity and at least as good in all. Of equals it has the first. Fastest first.
std::vector<Candidate> front_of(
    const std::vector<Candidate>& candidates,
    const cost::Cluster& cluster);

} // namespace tessera::planner
