#include "tessera/planner/calibration.h"

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"

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

TEST(Calibration, WhatIsKeptCalibrates) {
  planner::Candidate candidate;
  candidate.cost.stages.resize(1);
  const std::string path =
      (std::filesystem::path(testing::TempDir()) / "calibration.json").string();
  std::ofstream(path) << calibration_json(
      {candidate, candidate, candidate, candidate},
      {measured(1, 2), measured(2, 6), measured(3, 30), failed(4)},
      {},
      {});
  EXPECT_DOUBLE_EQ(calibration_ratio(path), 3);
  const auto json = nlohmann::json::parse(std::ifstream(path));
  EXPECT_EQ(json["trials"].size(), 4u);
  EXPECT_EQ(json["trials"][3]["failure"], "out of memory");
  EXPECT_EQ(json["spearman"], 1);
  std::ofstream(path) << "{\"measured_by_predicted\": -1}";
  EXPECT_THROW(calibration_ratio(path), ConfigError);
  std::ofstream(path) << "[";
  EXPECT_THROW(calibration_ratio(path), ConfigError);
}

} // namespace
} // namespace tessera::planner
