#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"

#include "cli/plan/run_trials.h"
#include "models/data/prepare.h"
#include "models/data/token_file.h"

namespace tessera::cli {
namespace {

using planner::calibration_json;
using planner::calibration_ratio;
using planner::fastest;
using planner::rank_agreement;
using planner::Trial;
using testing::HasSubstr;

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

std::string path_of(const char* name) {
  return (std::filesystem::path(testing::TempDir()) / name).string();
}

TEST(Trials, FailedOnesDoNotWin) {
  EXPECT_EQ(fastest({failed(1), measured(2, 3), measured(3, 2.5)}), 2);
  EXPECT_EQ(fastest({failed(1)}), -1);
  EXPECT_EQ(fastest({}), -1);
}

TEST(Trials, AgreementNeedsThree) {
  EXPECT_FALSE(rank_agreement({measured(1, 1), measured(2, 2), failed(3)}));
  EXPECT_EQ(rank_agreement({measured(1, 5), measured(2, 6), measured(3, 9)}), 1);
}

TEST(Trials, ReasonsAreReadFromTheLog) {
  EXPECT_THAT(
      reason_of_failure("tessera: rank 1 on host x was killed by signal 9 (SIGKILL)\n", 137),
      HasSubstr("out of memory: tessera: rank 1"));
  EXPECT_THAT(
      reason_of_failure("noise\nDefaultCPUAllocator: can't allocate memory: 8 bytes\n", 1),
      HasSubstr("out of memory"));
  EXPECT_EQ(
      reason_of_failure(
          "tessera: data.batch is odd\n"
          "tessera: rank 0 on host x ended with exit status 2\n",
          2),
      "tessera: data.batch is odd");
  EXPECT_EQ(reason_of_failure("", 124), "it did not end in time");
  EXPECT_EQ(reason_of_failure("", 3), "exit status 3");
}

TEST(Trials, WhatIsKeptCalibrates) {
  planner::Candidate candidate;
  candidate.cost.stages.resize(1);
  const std::string path = path_of("calibration.json");
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

TEST(Trials, RandomTokensAreADataFolder) {
  const std::string folder = path_of("tokens");
  write_random_tokens(folder, 100, 500);
  const data::TokenDataset tokens(folder + "/" + data::kTrainFile);
  EXPECT_EQ(tokens.size(), 500u);
  EXPECT_EQ(tokens.vocab_size(), 100);
}

} // namespace
} // namespace tessera::cli
