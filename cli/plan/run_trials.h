#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tessera/planner/calibration.h"
#include "tessera/timeline/timeline.h"

namespace tessera::cli {

/// Where and how long trials run.
struct TrialOptions {
  int steps = 6; // of which the first two are not counted
  int ranks = 0;
  std::string hostfile; // "": this machine
  int timeout_seconds = 600; // of one trial
  std::string job; // JSON of a job that trains the model, without a strategy
  /// In place of a job: a program that trains a described model, with its arguments. It gets the
  /// strategy in the variable SM_HP_MP_PARAMETERS, and is asked to end after `steps` updates.
  std::vector<std::string> program;
  /// Where the files of every trial are kept: its job, log and timeline, and the timeline that the
  /// simulator gives the same strategy, as trial_N.json, trial_N.jsonl, trial_N.timeline.json and
  /// trial_N.simulated.json. "": nowhere.
  std::string folder;
};

/// What a simulation says of a trial.
struct SimulatedTrial {
  std::vector<double> peak_bytes; // of tensors on each rank
  timeline::Timeline timeline;
};
SimulatedTrial simulate_trial(
    const planner::Candidate& candidate,
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const cost::Constants& constants);

/// Returns where TrialOptions::folder has a file of trial `index`, counted from 0.
std::string trial_file(const std::string& folder, std::size_t index, const std::string& ending);

/// Trains a few steps under each candidate in a process tree of its own, so
/// that a candidate that runs out of memory ends no other. The result has the order
/// of `candidates`; `told` is called with each trial as it ends.
/// An interruption ends the running trial; the trials that have ended are
/// returned. Throws: Error when nothing can be started, or when none had ended
/// well before the interruption.
std::vector<planner::Trial> run_trials(
    const std::vector<planner::Candidate>& candidates,
    const cost::DescribedModel& model,
    const TrialOptions& options,
    const std::function<void(std::size_t, const planner::Trial&)>& told);

/// Writes a data folder of random tokens on which a GPT of this vocabulary can be trained.
void write_random_tokens(const std::string& folder, std::int64_t vocabulary, std::int64_t tokens);

/// Returns the line of `log` that explains best why a run failed.
std::string reason_of_failure(const std::string& log, int status);

} // namespace tessera::cli
