#include "tessera/plan/from_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/config/keys.h"

namespace tessera::plans::test {

namespace {

using config::Config;

TEST(FromConfig, Degrees) {
  const Config two{.pipeline_parallel_degree = 2, .ddp = true};
  EXPECT_EQ(degrees(two, 8), (topology::Degrees{.pipeline = 2, .tensor = 1, .reduced_data = 4}));
  const Config tensor{.pipeline_parallel_degree = 2, .ddp = true, .tensor_parallel_degree = 2};
  EXPECT_EQ(degrees(tensor, 8), (topology::Degrees{.pipeline = 2, .tensor = 2, .reduced_data = 2}));
  EXPECT_THROW(degrees(two, 7), ConfigError);
  EXPECT_THROW(degrees(Config{}, 2), ConfigError); // two replicas without ddp
}

TEST(FromConfig, EverythingButThePartition) {
  const Config config{
      .pipeline_parallel_degree = 2,
      .microbatches = 2,
      .pipeline = "custom",
      .custom_schedule = " 0F  1F\n0B 1B",
      .placement_strategy = "spread"};
  const Plan plan = plan_from_config(config, 2);
  const Plan expected{
      .degrees = {.pipeline = 2},
      .placement = "TPD",
      .schedule = "custom",
      .microbatches = 2,
      .active_microbatches = 4,
      .custom_schedule = "0F 1F 0B 1B"};
  EXPECT_EQ(plan, expected);
  EXPECT_NO_THROW(validate(plan));
}

TEST(FromConfig, ACustomOrderMustFitTheMicrobatches) {
  EXPECT_THROW(
      plan_from_config({.microbatches = 2, .pipeline = "custom", .custom_schedule = "0F 0B"}, 1),
      ConfigError);
}

// The configuration does not know the folders that act on its texts; what it
// allows they must take.
TEST(FromConfig, EveryAllowedTextIsUnderstood) {
  for (const auto& choice : config::find_key("placement_strategy")->choices) {
    EXPECT_NO_THROW(topology::PlacementStrategy{choice}) << choice;
  }
  for (const auto& choice : config::find_key("pipeline")->choices) {
    EXPECT_NO_THROW(schedule::make_schedule(
        choice,
        1,
        1,
        choice == "custom" ? schedule::parse_order("0F 0B") : std::vector<schedule::Action>{}))
        << choice;
  }
}

} // namespace

} // namespace tessera::plans::test
