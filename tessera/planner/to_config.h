#pragma once

#include <optional>
#include <string>

#include "tessera/config/config.h"
#include "tessera/plan/plan.h"
#include "tessera/planner/candidate.h"

namespace tessera::planner {

/// Returns what the runtime of this version lacks for the strategy, as a sentence;
/// nullopt when the strategy runs.
std::optional<std::string> not_runnable(
    const Candidate& candidate,
    const cost::DescribedModel& model);

/// Returns what the configuration's own checks say against dividing parameters among the replicas
/// of a strategy of these degrees; nullopt when they accept it. The strategy needs no boundaries.
std::optional<std::string> sharding_refusal(const cost::Strategy& strategy);

/// Returns how a job's key `activation_checkpointing` says what the strategy recomputes: "none",
/// "each" or "selective".
std::string recomputation_of(const cost::Strategy& strategy);

/// Returns the strategy as a Plan, with layer names as module paths and the root on
/// pp rank 0.
plans::Plan to_plan(const Candidate& candidate, const cost::DescribedModel& model);

/// Returns the strategy as the configuration of a run; only keys that a plan decides are set.
/// Throws: PlanError when not_runnable.
config::Config to_config(const Candidate& candidate, const cost::DescribedModel& model);

/// Returns the same as JSON of the keys that differ from their defaults.
/// Throws: PlanError when not_runnable.
std::string to_config_json(const Candidate& candidate, const cost::DescribedModel& model);

} // namespace tessera::planner
