// What a launcher says wins over what the script says.
#include "tessera/config/launcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::config::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Config script_config() {
  return {.pipeline_parallel_degree = 2, .microbatches = 4, .pipeline = "simple", .ddp = true};
}

std::string launcher_error(const std::string& text, const Config& config = script_config()) {
  try {
    with_launcher_values(config, text);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(Launcher, ItsKeysWinAndTheOthersStay) {
  const Launched launched = with_launcher_values(
      script_config(), R"({"partitions": 4, "ddp": true, "default_partition": 3,
                                        "auto_partition": false})");
  Config wanted = script_config();
  wanted.pipeline_parallel_degree = 4;
  wanted.auto_partition = false;
  wanted.default_partition = 3;
  EXPECT_EQ(launched.config, wanted);
  EXPECT_THAT(
      launched.changes,
      ElementsAre(
          "\"pipeline_parallel_degree\" is 4 by SM_HP_MP_PARAMETERS, not 2",
          "\"auto_partition\" is false by SM_HP_MP_PARAMETERS, not true",
          "\"default_partition\" is 3 by SM_HP_MP_PARAMETERS"));
}

TEST(Launcher, TheOuterFormOfAJobToo) {
  const Launched launched = with_launcher_values(
      script_config(),
      R"({"smdistributed": {"modelparallel": {"enabled": true, "parameters": {"microbatches": 8}}},
          "mpi": {"enabled": true, "processes_per_host": 2}})");
  EXPECT_EQ(launched.config.microbatches, 8);
  EXPECT_EQ(launched.config.processes_per_host, 2);
  EXPECT_EQ(launched.config.pipeline, script_config().pipeline);
}

TEST(Launcher, NothingSaidChangesNothing) {
  for (const char* text : {"", "  \n", "{}"}) {
    const Launched launched = with_launcher_values(script_config(), text);
    EXPECT_EQ(launched.config, script_config()) << text;
    EXPECT_THAT(launched.changes, IsEmpty()) << text;
  }
}

TEST(Launcher, BadValuesNameTheVariable) {
  EXPECT_THAT(
      launcher_error("{\"microbatches\": 0}"), HasSubstr("SM_HP_MP_PARAMETERS: microbatches"));
  EXPECT_THAT(launcher_error("no json"), HasSubstr("SM_HP_MP_PARAMETERS: not valid JSON"));
  EXPECT_THAT(launcher_error("{\"microbatchs\": 2}"), HasSubstr("nearest known key"));
  // Each of both is right by itself.
  EXPECT_THAT(launcher_error("{\"custom_schedule\": \"0F 0B\"}"), HasSubstr("custom_schedule"));
}

} // namespace
} // namespace tessera::config::test
