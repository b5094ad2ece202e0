#pragma once

#include <string>

#include "cli/train/job.h"

namespace tessera::cli {

/// How choose_strategy finds one.
struct StrategyOptions {
  /// Takes the plan of the newest checkpoint in `checkpoint.directory`, as long as it is for so
  /// many processes.
  bool keep_plan = false;
  /// What `tessera probe` measured of these ranks; "": they are measured.
  std::string cluster_file = "";
};

/// Fills in `job.parallel` and `job.plan` of a job with "strategy": "auto":
/// measures the ranks for a few seconds, or reads what was measured, searches
/// what this version runs, prints the choice and its reasons on rank 0. Memory
/// that this took goes back to the system. Before `init`.
/// Collective over all processes.
/// Throws: ConfigError, also where the file is of other numbers of ranks on its
/// hosts, or PlanError, the same on every rank.
void choose_strategy(Job& job, const StrategyOptions& options);

} // namespace tessera::cli
