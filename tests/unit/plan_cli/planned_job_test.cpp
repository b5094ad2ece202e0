#include "cli/train/planned_job.h"

#include <map>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cli/train/job_preset.h"

namespace tessera::cli {
namespace {

TEST(PlannedJob, AJobKeepsEverythingButItsStrategy) {
  config::Config parallel;
  parallel.ddp = true;
  const auto job = nlohmann::json::parse(
      job_with_parallel(R"({"strategy": "auto", "steps": 3, "parallel": {"seed": 1}})", parallel));
  EXPECT_FALSE(job.contains("strategy"));
  EXPECT_EQ(job["steps"], 3);
  EXPECT_EQ(job["parallel"], nlohmann::json::parse(R"({"ddp": true})"));
}

TEST(PlannedJob, ShardedGradientsAreClippedAsTheJobSays) {
  config::Config parallel;
  parallel.ddp = true;
  parallel.sharded_data_parallel_degree = 2;
  auto job = nlohmann::json::parse(
      job_with_parallel(R"({"optimizer": {"clip_norm": 0.5, "learning_rate": 1e-3}})", parallel));
  EXPECT_EQ(job["optimizer"], nlohmann::json::parse(R"({"learning_rate": 1e-3})"));
  EXPECT_EQ(job["parallel"]["sdp_gradient_clipping"], 0.5);
  EXPECT_EQ(sharded_clipping(0), 1e30);
  parallel.sharded_data_parallel_degree = 1;
  job = nlohmann::json::parse(job_with_parallel(R"({"optimizer": {"clip_norm": 0.5}})", parallel));
  EXPECT_EQ(job["optimizer"]["clip_norm"], 0.5);
}

TEST(PlannedJob, AJobGoesOnFromAFolder) {
  const auto job = nlohmann::json::parse(job_resuming_from(
      R"({"steps": 3, "checkpoint": {"directory": "here", "every": 2}})", "there"));
  EXPECT_EQ(
      job,
      nlohmann::json::parse(R"({"steps": 3, "checkpoint": {"directory": "there", "every": 2}})"));
}

// f32: Adam's moments; LAMB has its updates beside them.
TEST(PlannedJob, StateIsWhatAnUpdateHolds) {
  Job job;
  for (const auto& [type, bytes] :
       std::map<std::string, double>{{"adamw", 8}, {"lamb", 12}, {"novograd", 4}, {"sgd", 0}}) {
    job.optimizer.type = type;
    job.optimizer.momentum = 0;
    EXPECT_EQ(state_bytes_per_parameter(job), bytes) << type;
  }
}

} // namespace
} // namespace tessera::cli
