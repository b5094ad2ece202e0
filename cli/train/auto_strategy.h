#pragma once

#include "cli/train/job.h"

namespace tessera::cli {

/// Fills in `job.parallel` of a job with "strategy": "auto": measures the ranks
/// for a few seconds, searches what this version runs, prints the choice and
/// its reasons on rank 0. Before `init`.
/// Collective over all processes.
/// Throws: ConfigError or PlanError, the same on every rank.
void choose_strategy(Job& job);

} // namespace tessera::cli
