#pragma once

#include <string>

#include "cli/plan/planning.h"
#include "cli/plan/run_trials.h"

namespace tessera::cli {

/// What `tessera plan` was asked for.
struct PlanRequest {
  PlanningInput input;
  bool schema = false;
  bool json = false;
  std::string price;
  int explain = 0;
  std::string config_file;
  std::string parallel_config_file;
  std::string plan_file;
  std::string written_hostfile;
  std::string data;
  std::string from; // checkpoints that the plan goes on from
  int trials = 0;
  bool spread_trials = false;
  TrialOptions trial;
  std::string calibration;
  std::string write_calibration = "calibration.json";
};

/// Returns whether the plan is written into a file.
bool writes(const PlanRequest& options);

/// Returns whether it goes where only keys of a configuration are, none of which says what is
/// recomputed.
bool into_configuration(const PlanRequest& options);

/// Refuses options that exclude each other, ask for what the runtime cannot do, or would lose a
/// file that is read. Throws: ConfigError with what to write.
void check(const PlanRequest& options);

} // namespace tessera::cli
