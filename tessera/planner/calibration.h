#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/planner/candidate.h"

namespace tessera::planner {

/// A few steps of training under one candidate.
struct Trial {
  double predicted_seconds = 0;
  std::optional<double> measured_seconds; // of the median step; nullopt: the trial failed
  std::string failure; // one line
  /// The most bytes of tensors on each rank, as simulated and as the run's log says; may be empty.
  std::vector<double> predicted_peak_bytes = {};
  std::vector<double> measured_peak_bytes = {};
};

/// By what each part of a predicted time is multiplied to become a measured one
/// (tessera/planner/trial_factors.h).
struct TrialFactors {
  double compute = 1; // of devices: layers, optimizer, cores that ranks share
  double exchange = 1; // of links: activations, tensor-parallel and data-parallel traffic
  double waiting = 1; // of hosts, for which devices wait
};

/// Returns the index of the fastest trial, or -1 when all failed.
int fastest(const std::vector<Trial>& trials);

/// Returns Spearman's coefficient of predicted and measured seconds over the trials
/// that finished; nullopt when these are fewer than three.
std::optional<double> rank_agreement(const std::vector<Trial>& trials);

/// Returns the file that calibrates later plans: every trial, the median of the ratios of measured
/// to predicted seconds, and the factors of their parts. trials[i] ran candidates[i].
std::string calibration_json(
    const std::vector<Candidate>& candidates,
    const std::vector<Trial>& trials,
    const TrialFactors& factors,
    const cost::DescribedModel& model,
    const cost::Cluster& cluster);

/// Reads the median ratio of measured to predicted seconds from the text of a calibration file.
/// Throws: ConfigError naming `origin` when it has no positive ratio.
double calibration_ratio_of(const std::string& text, const std::string& origin);

} // namespace tessera::planner
