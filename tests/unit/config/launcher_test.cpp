// What a launcher says wins over what the script says.
#include "tessera/config/launcher.h"

#include <map>
#include <string>
#include <utility>
#include <vector>

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

/// Arguments of a program as main gets them.
struct Arguments {
  explicit Arguments(std::vector<std::string> given) : words(std::move(given)) {
    for (std::string& word : words) {
      pointers.push_back(word.data());
    }
    count = static_cast<int>(pointers.size());
    pointers.push_back(nullptr);
  }
  std::vector<std::string> left() const {
    return {pointers.begin(), pointers.begin() + count};
  }
  std::vector<std::string> words;
  std::vector<char*> pointers;
  int count = 0;
};

TEST(LauncherArgument, ItsKeysWinAndItIsTakenOut) {
  for (const auto& [given, left] :
       std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>>{
           {{"train", "--mp_parameters", "partitions=4,ddp=True,optimize=memory", "--steps", "3"},
            {"train", "--steps", "3"}},
           {{"train", "--mp_parameters={\"partitions\": 4, \"optimize\": \"memory\"}"}, {"train"}},
           {{"train", "-v", "--mp_parameters=partitions=4,optimize=\"memory\""},
            {"train", "-v"}}}) {
    Arguments arguments(given);
    const Launched launched =
        take_launcher_argument(script_config(), arguments.count, arguments.pointers.data());
    Config wanted = script_config();
    wanted.pipeline_parallel_degree = 4;
    wanted.optimize = "memory";
    EXPECT_EQ(launched.config, wanted);
    EXPECT_EQ(arguments.left(), left);
    EXPECT_EQ(arguments.pointers[static_cast<std::size_t>(arguments.count)], nullptr);
    EXPECT_EQ(
        launched.changes.front(), "\"pipeline_parallel_degree\" is 4 by --mp_parameters, not 2");
  }
}

TEST(LauncherArgument, CommasInsideOfAValueDoNotDivide) {
  Arguments arguments(
      {"p",
       "--mp_parameters",
       "auto_partition=false,default_partition=0,partition={\"a\":1,\"b\":0}"});
  const Launched launched =
      take_launcher_argument(script_config(), arguments.count, arguments.pointers.data());
  EXPECT_EQ(launched.config.partition, (std::map<std::string, int>{{"a", 1}, {"b", 0}}));
}

TEST(LauncherArgument, WithoutItNothingChanges) {
  Arguments arguments({"p", "--mp_parameters_file", "x"});
  const Launched launched =
      take_launcher_argument(script_config(), arguments.count, arguments.pointers.data());
  EXPECT_EQ(launched.config, script_config());
  EXPECT_THAT(launched.changes, IsEmpty());
  EXPECT_EQ(arguments.left().size(), 3U);
}

TEST(LauncherArgument, WrongFormsAreNamed) {
  const auto error_of = [](std::vector<std::string> given) -> std::string {
    Arguments arguments(std::move(given));
    try {
      take_launcher_argument(script_config(), arguments.count, arguments.pointers.data());
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(error_of({"p", "--mp_parameters"}), HasSubstr("has no value"));
  EXPECT_THAT(error_of({"p", "--mp_parameters", "ddp"}), HasSubstr("found \"ddp\""));
  EXPECT_THAT(
      error_of({"p", "--mp_parameters=ddp=1", "--mp_parameters", "ddp=1"}),
      HasSubstr("is given twice"));
  EXPECT_THAT(error_of({"p", "--mp_parameters=ddp=yes"}), HasSubstr("found \"yes\""));
  EXPECT_THAT(error_of({"p", "--mp_parameters=ddp=true,ddp=false"}), HasSubstr("\"ddp\""));
  EXPECT_THAT(error_of({"p", "--mp_parameters=microbatch=2"}), HasSubstr("\"microbatches\""));
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
