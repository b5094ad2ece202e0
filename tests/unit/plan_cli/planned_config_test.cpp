#include "tessera/planner/planned_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"

#include "cli/plan/planned_job.h"

namespace tessera::cli {
namespace {

using planner::planned_keys_said;
using planner::with_plan;
using testing::ElementsAre;

TEST(PlannedConfig, NamesTheKeysThatAPlanDecides) {
  config::Config config;
  config.seed = 3;
  EXPECT_TRUE(planned_keys_said(config).empty());
  config.ddp = true;
  config.microbatches = 4;
  EXPECT_THAT(planned_keys_said(config), ElementsAre("ddp", "microbatches"));
}

TEST(PlannedConfig, APlanReplacesItsKeysAndNoOther) {
  config::Config base;
  base.pipeline_parallel_degree = 4;
  base.microbatches = 8;
  base.active_microbatches = 3;
  base.seed = 11;
  base.timeout_seconds = 5;
  const config::Config result = with_plan(base, R"({"ddp": true, "microbatches": 2})");
  EXPECT_EQ(result.pipeline_parallel_degree, 1);
  EXPECT_EQ(result.microbatches, 2);
  EXPECT_FALSE(result.active_microbatches);
  EXPECT_TRUE(result.ddp);
  EXPECT_EQ(result.seed, 11);
  EXPECT_EQ(result.timeout_seconds, 5);
  EXPECT_THROW(with_plan(base, "{"), ConfigError);
}

TEST(PlannedConfig, AJobKeepsEverythingButItsStrategy) {
  config::Config parallel;
  parallel.ddp = true;
  const auto job = nlohmann::json::parse(
      job_with_parallel(R"({"strategy": "auto", "steps": 3, "parallel": {"seed": 1}})", parallel));
  EXPECT_FALSE(job.contains("strategy"));
  EXPECT_EQ(job["steps"], 3);
  EXPECT_EQ(job["parallel"], nlohmann::json::parse(R"({"ddp": true})"));
}

} // namespace
} // namespace tessera::cli
