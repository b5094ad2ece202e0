#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/planner/candidate.h"

namespace tessera::planner {

/// A few steps of training under one candidate.
struct Trial {
  double predicted_seconds = 0;
  std::optional<double> measured_seconds; // median step; none: it failed
  std::string failure; // one line
};

/// Index of the fastest, or -1 when all failed.
int fastest(const std::vector<Trial>& trials);

/// Spearman's coefficient of the trials that finished; none below three.
std::optional<double> rank_agreement(const std::vector<Trial>& trials);

/// What a later plan is calibrated with: every trial, and the median of
/// measured by predicted seconds.
std::string calibration_json(
    const std::vector<Candidate>& candidates,
    const std::vector<Trial>& trials,
    const cost::DescribedModel& model,
    const cost::Cluster& cluster);

/// The ratio of a calibration file. Throws: ConfigError.
double calibration_ratio(const std::string& path);

} // namespace tessera::planner
