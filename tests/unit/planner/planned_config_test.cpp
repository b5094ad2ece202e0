#include "tessera/planner/planned_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::planner {
namespace {

using testing::ElementsAre;

TEST(PlannedConfig, NamesTheKeysThatAPlanDecides) {
  config::Config config;
  config.seed = 3;
  EXPECT_TRUE(planned_keys_said(config).empty());
  config.ddp = true;
  config.microbatches = 4;
  EXPECT_THAT(planned_keys_said(config), ElementsAre("ddp", "microbatches"));
}

TEST(PlannedConfig, NamesTheKeysThatAPlanReplaces) {
  config::Config base;
  base.seed = 3;
  base.microbatches = 4;
  base.pipeline_parallel_degree = 2;
  base.active_microbatches = 1;
  config::Config planned;
  planned.microbatches = 4;
  planned.ddp = true;
  EXPECT_THAT(
      replaced_keys(base, planned), ElementsAre("pipeline_parallel_degree", "active_microbatches"));
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

TEST(PlannedConfig, KeepsFastModeThatEitherSays) {
  config::Config said;
  said.static_mode = true;
  said.fast_mode = true;
  said.static_mode_steps = 3;
  const config::Config kept = with_plan(said, R"({"ddp": true})");
  EXPECT_TRUE(kept.static_mode && kept.fast_mode);
  EXPECT_EQ(kept.static_mode_steps, 3);
  const config::Config planned =
      with_plan(config::Config{}, R"({"static_mode": true, "fast_mode": true})");
  EXPECT_TRUE(planned.static_mode && planned.fast_mode);
  EXPECT_FALSE(with_plan(config::Config{}, R"({"ddp": true})").static_mode);
}

} // namespace
} // namespace tessera::planner
