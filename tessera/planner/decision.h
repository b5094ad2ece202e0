#pragma once

#include <optional>
#include <string>

#include "tessera/config/config.h"
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
plans::Plan to_plan(const Candidate& candidate, const cost::DescribedModel& model);

/// Returns the strategy as the configuration of a run; only keys that a plan decides are set.
/// Throws: PlanError when not_runnable.
config::Config to_config(const Candidate& candidate, const cost::DescribedModel& model);

/// The same as JSON of the keys that differ from their defaults.
std::string to_config_json(const Candidate& candidate, const cost::DescribedModel& model);

} // namespace tessera::planner
