#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support.h"

namespace tessera::config::test {

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Parse, AnEmptyObjectIsTheDefault) {
  EXPECT_EQ(parse_config("{}", "test"), Config{});
}

TEST(Parse, ReadsEveryType) {
  const Config config = parse_config(
      R"({"partitions": 2, "microbatches": 4, "pipeline": "custom",
          "custom_schedule": "0F 0B", "active_microbatches": 3, "ddp": true,
          "memory_weight": 0.25, "seed": 1e3, "timeout_seconds": 10,
          "processes_per_host": 2, "custom_mpi_options": "--mca a b",
          "auto_partition": false, "partition": {"": 1, "a.b": 0}})",
      "test");
  const Config expected{
      .pipeline_parallel_degree = 2,
      .microbatches = 4,
      .pipeline = "custom",
      .custom_schedule = "0F 0B",
      .active_microbatches = 3,
      .ddp = true,
      .auto_partition = false,
      .partition = {{"", 1}, {"a.b", 0}},
      .memory_weight = 0.25,
      .processes_per_host = 2,
      .custom_mpi_options = "--mca a b",
      .seed = 1000,
      .timeout_seconds = 10.0};
  EXPECT_EQ(config, expected);
}

TEST(Parse, JsonRoundTrip) {
  const Config config{
      .pipeline_parallel_degree = 3,
      .microbatches = 6,
      .pipeline = "simple",
      .active_microbatches = 2,
      .deterministic_server = true,
      .placement_strategy = "PTD",
      .ddp = true,
      .default_partition = 2,
      .partition_file = "a \"b\"\n.json",
      .optimize = "speed",
      .memory_weight = 0.1,
      .trace_device = "cpu",
      .delayed_parameter_initialization = true,
      .processes_per_host = 8,
      .seed = 9007199254740993, // not a double
      .timeout_seconds = 0.1};
  EXPECT_EQ(parse_config(to_json(config), "test"), config);
  EXPECT_EQ(parse_config(to_json({}), "test"), Config{});
}

TEST(Parse, ValuesInForce) {
  EXPECT_EQ(Config{}.effective_active_microbatches(), 3);
  EXPECT_EQ(Config{.pipeline_parallel_degree = 4}.effective_active_microbatches(), 6);
  EXPECT_EQ(Config{.active_microbatches = 1}.effective_active_microbatches(), 1);
  EXPECT_EQ(Config{}.effective_memory_weight(), 0.8);
  EXPECT_EQ(Config{.optimize = "speed"}.effective_memory_weight(), 0.2);
  EXPECT_EQ((Config{.optimize = "speed", .memory_weight = 1.0}.effective_memory_weight()), 1.0);
  EXPECT_EQ(Config{.default_partition = 3}.effective_default_partition(), 3);
}

TEST(Parse, AllErrorsTogether) {
  const std::string message = parse_error(
      R"({"microbatches": 0, "pipline": "simple", "ddp": 1, "horovod": true,
          "ddp_dist_backend": "nccl", "load_partition": true})");
  EXPECT_THAT(
      message,
      AllOf(
          HasSubstr("test.json: 6 errors\n"),
          HasSubstr("\n  microbatches: found 0"),
          HasSubstr("\n  \"pipline\": unknown key"),
          HasSubstr("\n  ddp: found 1; write true or false"),
          HasSubstr("\n  horovod: not a key"),
          HasSubstr("\n  ddp_dist_backend: not available in this version; found"),
          HasSubstr("\n  load_partition is true; add")));
}

TEST(Parse, AnAliasIsNamedAsItWasWritten) {
  EXPECT_EQ(
      parse_error(R"({"partitions": 0})"),
      "test.json: partitions (pipeline_parallel_degree): found 0; write an "
      "integer from 1 to 1000000");
}

TEST(Parse, GivenTwice) {
  EXPECT_EQ(
      parse_error(R"({"partitions": 2, "pipeline_parallel_degree": 2})"),
      "test.json: partitions (pipeline_parallel_degree): given twice, as "
      "\"partitions\" and as \"pipeline_parallel_degree\"; keep one");
  EXPECT_EQ(
      parse_error(R"({"ddp": true, "ddp": true})"),
      "test.json: \"ddp\": stands twice in one object, at line 1, column 2 and at "
      "line 1, column 15; keep one");
  EXPECT_THAT(
      parse_error(R"({"auto_partition": false, "partition": {"a": 0, "a": 0}})"),
      HasSubstr("\"a\": stands twice"));
  EXPECT_THAT(
      parse_error(R"({"processes_per_host": 2, "mpi": {"processes_per_host": 2}})"),
      HasSubstr("given twice"));
}

TEST(Parse, NoJsonNamesLineAndColumn) {
  EXPECT_THAT(
      parse_error("{\n\"ddp\": trx}"),
      AllOf(
          HasSubstr("test.json: not valid JSON: "),
          HasSubstr("line 2, column 10"),
          Not(HasSubstr("json.exception"))));
  EXPECT_THAT(parse_error(""), HasSubstr("not valid JSON"));
  EXPECT_THAT(parse_error("{} {}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(parse_error("{\"seed\": 1e999}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(parse_error("{\"a\": \"\xff\"}"), HasSubstr("not valid JSON"));
}

TEST(Parse, OfAnObjectTheWrongPartIsShown) {
  EXPECT_THAT(
      parse_error(R"({"tensor_parallel_degree_of": {"b0": 1, "b1": "1"}})"),
      HasSubstr("tensor_parallel_degree_of: found \"1\" at \"b1\"; write an object"));
  EXPECT_THAT(
      parse_error(R"({"tensor_parallel_degree_of": {"b0": 0}})"),
      HasSubstr("tensor_parallel_degree_of: found 0 at \"b0\""));
  EXPECT_THAT(
      parse_error(R"({"tensor_parallel_degree_of": [1]})"),
      HasSubstr("tensor_parallel_degree_of: found [1]; write an object"));
}

TEST(Parse, AnythingButAnObject) {
  EXPECT_THAT(parse_error("[1, 2]"), HasSubstr("test.json: found [1,2]; write an object of keys"));
  EXPECT_THAT(parse_error("null"), HasSubstr("found null"));
  EXPECT_THAT(parse_error("3"), HasSubstr("found 3"));
}

TEST(Parse, LongTextsAreCutShort) {
  const std::string message = parse_error("{\"pipeline\": \"" + std::string(100000, 'x') + "\"}");
  EXPECT_LT(message.size(), 200U);
  const std::string key = parse_error("{\"" + std::string(100000, 'x') + "\": 1}");
  EXPECT_LT(key.size(), 200U);
  const std::string no_json = parse_error("{" + std::string(100000, 'x'));
  EXPECT_LT(no_json.size(), 500U);
}

} // namespace

} // namespace tessera::config::test
