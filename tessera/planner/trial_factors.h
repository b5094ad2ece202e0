#pragma once

#include <string>
#include <vector>

#include "tessera/planner/calibration.h"
#include "tessera/planner/candidate.h"

/// What trials of some candidates say about the others, and about other models on the same machine.
namespace tessera::planner {

/// Fits the factors to the trials that finished, by least squares of relative errors. A trial knows
/// the sum of the parts only, so few trials cannot tell the parts apart: each factor is also held
/// near the median of measured over predicted seconds, as if one trial had measured that part alone
/// with a sixth of a trial's certainty. One trial therefore gives one common factor. Every factor
/// lies within four times the median, either way. trials[i] ran candidates[i], whose predictions
/// were not calibrated. All ones when no trial finished.
TrialFactors fit_factors(
    const std::vector<Candidate>& candidates,
    const std::vector<Trial>& trials);

/// Reads the factors from the text of a calibration file; from one that has only
/// `measured_by_predicted`, that number for each.
/// Throws: ConfigError naming `origin` when a number is missing or not positive.
TrialFactors factors_of(const std::string& text, const std::string& origin);

/// The same from a file. Throws: ConfigError, also when it cannot be read.
TrialFactors read_factors(const std::string& path);

/// Returns one line, "compute x 1.100, exchange x 0.800, waiting x 1.000".
std::string text_of(const TrialFactors& factors);

/// Returns the predicted seconds of a candidate, part by part multiplied by the factors.
double calibrated(const Candidate& candidate, const TrialFactors& factors);

/// Sets the seconds of every candidate to the calibrated ones and sorts the candidates, fastest
/// first. Forgets the lower bound, which holds for uncalibrated seconds.
void calibrate(SearchResult& result, const TrialFactors& factors);

} // namespace tessera::planner
