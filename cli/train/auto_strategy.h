#pragma once

#include "cli/train/job.h"

namespace tessera::cli {

/// Fills in `job.parallel` and `job.plan` of a job with "strategy": "auto":
/// measures the ranks for a few seconds, searches what this version runs,
/// prints the choice and its reasons on rank 0. Memory that this took goes back
/// to the system. With `keep_plan` the plan of the newest checkpoint in
/// `checkpoint.directory` is taken instead, as long as it is for so many
/// processes. Before `init`.
/// Collective over all processes.
/// Throws: ConfigError or PlanError, the same on every rank.
void choose_strategy(Job& job, bool keep_plan);

} // namespace tessera::cli
