#pragma once

#include <optional>
#include <string>

#include "tessera/plan/plan.h"
#include "tessera/planner/candidate.h"

namespace tessera::planner {

/// What the runtime of this version lacks for the strategy, as a sentence;
/// nullopt when it runs.
std::optional<std::string> not_runnable(
    const Candidate& candidate,
    const cost::DescribedModel& model);

/// The strategy as a Plan: layer names are module paths, the root runs on pp
/// rank 0.
plan::Plan to_plan(const Candidate& candidate, const cost::DescribedModel& model);

/// The strategy as the configuration of a run: JSON of the keys of
/// config::Config that differ from their defaults.
/// Throws: PlanError when not_runnable.
std::string to_config_json(const Candidate& candidate, const cost::DescribedModel& model);

} // namespace tessera::planner
