#include "tessera/planner/trial_factors.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/json/parse.h"
#include "tessera/base/json/read.h"
#include "tessera/base/statistics.h"

namespace tessera::planner {

namespace {

// Compute, exchange, waiting.
using Parts = std::array<double, 3>;

/// The parts of the uncalibrated prediction. Devices of other stages are idle in a bubble, so it is
/// made of what the slowest stage does.
Parts parts_of(const Candidate& candidate) {
  const cost::StrategyCost& cost = candidate.cost;
  Parts parts = {cost.compute_seconds, cost.tensor_seconds, cost.waiting_seconds};
  const double steady = parts[0] + parts[1] + parts[2];
  if (steady > 0) {
    for (double& part : parts) {
      part *= 1 + cost.bubble_seconds / steady;
    }
  } else {
    parts[0] += cost.bubble_seconds;
  }
  parts[0] += cost.optimizer_seconds + cost.shared_cores_seconds;
  parts[1] += cost.transfer_seconds + cost.stall_seconds + cost.gradient_seconds;
  const double sum = parts[0] + parts[1] + parts[2];
  const double seconds = candidate.predicted_seconds();
  if (sum <= 0) {
    return {seconds, 0, 0};
  }
  for (double& part : parts) { // a simulation may say another sum than the estimate
    part *= seconds / sum;
  }
  return parts;
}

double sum_of(const Parts& parts, const Parts& factors) {
  return parts[0] * factors[0] + parts[1] * factors[1] + parts[2] * factors[2];
}

Parts array_of(const TrialFactors& factors) {
  return {factors.compute, factors.exchange, factors.waiting};
}

} // namespace

TrialFactors fit_factors(
    const std::vector<Candidate>& candidates,
    const std::vector<Trial>& trials) {
  // An error of 5 % of a trial, one of 30 % of the median: a sixth, squared.
  constexpr double kCertaintyOfTheMedian = 1.0 / 36;
  constexpr double kFarthest = 4;
  constexpr int kSweeps = 500; // of a convex function of three variables
  std::vector<Parts> shares; // of the measured seconds, so that errors are relative
  std::vector<double> ratios;
  for (std::size_t i = 0; i < trials.size(); ++i) {
    if (!trials[i].measured_seconds || *trials[i].measured_seconds <= 0 ||
        candidates[i].predicted_seconds() <= 0) {
      continue;
    }
    Parts parts = parts_of(candidates[i]);
    for (double& part : parts) {
      part /= *trials[i].measured_seconds;
    }
    shares.push_back(parts);
    ratios.push_back(*trials[i].measured_seconds / candidates[i].predicted_seconds());
  }
  if (shares.empty()) {
    return {};
  }
  const double common = median(ratios);
  Parts factors = {common, common, common};
  // Each factor in turn is set to the minimum of
  //   sum over trials (sum of share * factor - 1)^2 + certainty * (factor / common - 1)^2.
  const double hold = kCertaintyOfTheMedian / (common * common);
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    for (std::size_t k = 0; k < factors.size(); ++k) {
      double slope = hold * common;
      double curvature = hold;
      for (const Parts& share : shares) {
        slope += share[k] * (1 - sum_of(share, factors) + share[k] * factors[k]);
        curvature += share[k] * share[k];
      }
      factors[k] = std::clamp(slope / curvature, common / kFarthest, common * kFarthest);
    }
  }
  return {factors[0], factors[1], factors[2]};
}

TrialFactors factors_of(const std::string& text, const std::string& origin) {
  try {
    const auto json = parse_json(text, origin);
    if (!json.is_object() || !json.contains("factors")) {
      const double ratio = calibration_ratio_of(text, origin);
      return {ratio, ratio, ratio};
    }
    TrialFactors factors;
    form::Faults faults(origin);
    const auto& kept = json["factors"];
    form::Reader(kept, faults)({.name = "compute", .bounds = form::more_than(0)}, factors.compute);
    form::Reader(kept, faults)(
        {.name = "exchange", .bounds = form::more_than(0)}, factors.exchange);
    form::Reader(kept, faults)({.name = "waiting", .bounds = form::more_than(0)}, factors.waiting);
    return factors;
  } catch (const ConfigError&) {
    throw;
  } catch (const Error& error) {
    throw ConfigError(error.what());
  }
}

TrialFactors read_factors(const std::string& path) {
  std::string text;
  try {
    text = read_file(path);
  } catch (const Error& error) {
    throw ConfigError(error.what());
  }
  return factors_of(text, path);
}

std::string text_of(const TrialFactors& factors) {
  std::array<char, 96> text;
  const int length = std::snprintf(
      text.data(),
      text.size(),
      "compute x %.3f, exchange x %.3f, waiting x %.3f",
      factors.compute,
      factors.exchange,
      factors.waiting);
  return {text.data(), static_cast<std::size_t>(length)};
}

double calibrated(const Candidate& candidate, const TrialFactors& factors) {
  return sum_of(parts_of(candidate), array_of(factors));
}

void calibrate(SearchResult& result, const TrialFactors& factors) {
  for (Candidate& candidate : result.best) {
    candidate.calibrated_seconds = calibrated(candidate, factors);
  }
  result.prefers_simplest = false;
  std::stable_sort(
      result.best.begin(), result.best.end(), [](const Candidate& a, const Candidate& b) {
        return a.seconds() < b.seconds();
      });
  result.lower_bound = 0;
}

} // namespace tessera::planner
