#include "cli/plan/planned_job.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

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

} // namespace
} // namespace tessera::cli
