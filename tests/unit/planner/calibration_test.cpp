#include "tessera/planner/calibration.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/planner/trial_factors.h"

namespace tessera::planner {
namespace {

Trial measured(double predicted, double seconds) {
  Trial trial;
  trial.predicted_seconds = predicted;
  trial.measured_seconds = seconds;
  return trial;
}

Trial failed(double predicted) {
  Trial trial;
  trial.predicted_seconds = predicted;
  trial.failure = "out of memory";
  return trial;
}

TEST(Calibration, FailedOnesDoNotWin) {
  EXPECT_EQ(fastest({failed(1), measured(2, 3), measured(3, 2.5)}), 2);
  EXPECT_EQ(fastest({failed(1)}), -1);
  EXPECT_EQ(fastest({}), -1);
}

TEST(Calibration, AgreementNeedsThree) {
  EXPECT_FALSE(rank_agreement({measured(1, 1), measured(2, 2), failed(3)}));
  EXPECT_EQ(rank_agreement({measured(1, 5), measured(2, 6), measured(3, 9)}), 1);
}

Candidate predicted(double compute, double exchange, double waiting) {
  Candidate candidate;
  candidate.cost.stages.resize(1);
  candidate.cost.compute_seconds = compute;
  candidate.cost.gradient_seconds = exchange;
  candidate.cost.waiting_seconds = waiting;
  candidate.cost.seconds = compute + exchange + waiting;
  return candidate;
}

std::string kept(const std::vector<Candidate>& candidates, const std::vector<Trial>& trials) {
  return calibration_json(candidates, trials, fit_factors(candidates, trials), {}, {});
}

TEST(Calibration, WhatIsKeptCalibrates) {
  const std::vector<Candidate> candidates = {
      predicted(1, 0, 0), predicted(2, 0, 0), predicted(3, 0, 0), predicted(4, 0, 0)};
  const std::string text =
      kept(candidates, {measured(1, 2), measured(2, 6), measured(3, 30), failed(4)});
  EXPECT_DOUBLE_EQ(calibration_ratio_of(text, "here"), 3);
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["trials"].size(), 4u);
  EXPECT_EQ(json["trials"][3]["failure"], "out of memory");
  EXPECT_EQ(json["spearman"], 1);
  EXPECT_THROW(calibration_ratio_of("{\"measured_by_predicted\": -1}", "here"), ConfigError);
  EXPECT_THROW(calibration_ratio_of("[", "here"), ConfigError);
}

TEST(Calibration, PartsHaveFactorsOfTheirOwn) {
  std::vector<Candidate> candidates;
  std::vector<Trial> trials;
  for (int i = 0; i < 6; ++i) {
    candidates.push_back(predicted(1 + i % 3, 1 + i % 2, 0.5 * (i % 4)));
    const cost::StrategyCost& cost = candidates.back().cost;
    trials.push_back(measured(
        cost.seconds,
        2 * cost.compute_seconds + 0.7 * cost.gradient_seconds + 1.2 * cost.waiting_seconds));
  }
  const TrialFactors factors = fit_factors(candidates, trials);
  EXPECT_NEAR(factors.compute, 2, 0.15);
  EXPECT_NEAR(factors.exchange, 0.7, 0.2);
  EXPECT_NEAR(factors.waiting, 1.2, 0.2);
}

// A machine that is slower at everything has factors that are larger by as much, and no others.
TEST(Calibration, FactorsGrowWithTheMeasuredTimes) {
  const std::vector<Candidate> candidates = {
      predicted(4, 1, 0), predicted(2, 4, 1), predicted(5, 0, 2)};
  const auto factors = [&](double slower) {
    return fit_factors(
        candidates, {measured(5, 6 * slower), measured(7, 12 * slower), measured(7, 7 * slower)});
  };
  const TrialFactors here = factors(1);
  EXPECT_GT(here.exchange, 1.1 * here.compute);
  for (const double slower : {0.01, 20.0}) {
    const TrialFactors there = factors(slower);
    EXPECT_NEAR(there.compute / slower, here.compute, 1e-6) << slower;
    EXPECT_NEAR(there.exchange / slower, here.exchange, 1e-6) << slower;
    EXPECT_NEAR(there.waiting / slower, here.waiting, 1e-6) << slower;
  }
}

TEST(Calibration, OneTrialGivesOneFactor) {
  const std::vector<Candidate> candidates = {predicted(3, 2, 1)};
  const TrialFactors factors = fit_factors(candidates, {measured(6, 9)});
  EXPECT_NEAR(factors.compute, 1.5, 1e-9);
  EXPECT_NEAR(factors.exchange, 1.5, 1e-9);
  EXPECT_NEAR(factors.waiting, 1.5, 1e-9);
  EXPECT_EQ(fit_factors(candidates, {failed(6)}).compute, 1);
}

TEST(Calibration, ABubbleIsMadeOfWhatStagesDo) {
  Candidate candidate = predicted(3, 0, 1);
  candidate.cost.bubble_seconds = 2;
  candidate.cost.seconds = 6;
  EXPECT_DOUBLE_EQ(calibrated(candidate, {.compute = 2, .exchange = 9, .waiting = 1}), 10.5);
  candidate.simulated_seconds = 12; // another sum of the same parts
  EXPECT_DOUBLE_EQ(calibrated(candidate, {.compute = 2, .exchange = 9, .waiting = 1}), 21);
}

TEST(Calibration, RanksAnotherModelsStrategiesAnew) {
  // Trials of one model show that this machine exchanges three times slower than predicted.
  const std::vector<Candidate> tried = {
      predicted(4, 1, 0), predicted(4, 2, 0), predicted(2, 4, 0), predicted(5, 0, 0)};
  std::vector<Trial> trials;
  for (const Candidate& candidate : tried) {
    trials.push_back(measured(
        candidate.cost.seconds,
        candidate.cost.compute_seconds + 3 * candidate.cost.gradient_seconds));
  }
  SearchResult result;
  result.best = {predicted(5, 4, 0), predicted(9.5, 0.5, 0)};
  result.lower_bound = 9;
  calibrate(result, factors_of(kept(tried, trials), "here"));
  EXPECT_EQ(result.best[0].cost.compute_seconds, 9.5);
  EXPECT_NEAR(result.best[0].seconds(), 11, 0.6);
  EXPECT_NEAR(result.best[1].seconds(), 17, 1.5);
  EXPECT_DOUBLE_EQ(result.best[1].predicted_seconds(), 9);
  EXPECT_EQ(result.lower_bound, 0);
}

TEST(Calibration, AnOlderFileHasOneFactor) {
  EXPECT_EQ(factors_of("{\"measured_by_predicted\": 1.25}", "here").exchange, 1.25);
  EXPECT_THROW(factors_of("{}", "here"), ConfigError);
  EXPECT_THROW(factors_of("{\"factors\": {\"compute\": 1}}", "here"), ConfigError);
  EXPECT_THROW(
      factors_of("{\"factors\": {\"compute\": 0, \"exchange\": 1, \"waiting\": 1}}", "here"),
      ConfigError);
  EXPECT_THROW(read_factors("/nowhere/calibration.json"), ConfigError);
}

} // namespace
} // namespace tessera::planner
