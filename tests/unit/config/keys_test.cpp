#include "tessera/config/keys.h"

#include <fstream>
#include <map>
#include <regex>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/text.h"

#include "support.h"

namespace tessera::config::test {

namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Typed in from the documentation and the paper, not from the table.
const std::map<std::string, std::string> kDocumentedDefaults = {
    {"pipeline_parallel_degree", "1"},
    {"microbatches", "1"},
    {"pipeline", "\"interleaved\""},
    {"optimize", "\"memory\""},
    {"placement_strategy", "\"cluster\""},
    {"auto_partition", "true"},
    {"default_partition", "0"},
    {"memory_weight", "0.2 for speed, else 0.8"},
    {"ddp", "false"},
    {"ddp_port", "none"},
    {"ddp_dist_backend", "\"auto\""},
    {"active_microbatches", "partitions + 2"},
    {"deterministic_server", "false"},
    {"load_partition", "false"},
    {"partition_file", "none"},
    {"offload_activations", "false"},
    {"activation_loading_horizon", "4"},
    {"tensor_parallel_degree", "1"},
    {"fp16", "false"},
    {"fp16_params", "false"},
    {"bf16", "false"},
    {"fp32_grad_accumulation", "false"},
    {"shard_optimizer_state", "false"},
    {"prescaled_batch", "false"},
    {"skip_tracing", "false"},
    {"delayed_parameter_initialization", "false"},
    {"sharded_data_parallel_degree", "1"},
    {"sdp_reduce_bucket_size", "500000000"},
    {"sdp_param_persistence_threshold", "1000000"},
    {"sdp_max_live_parameters", "1000000000"},
    {"sdp_hierarchical_allgather", "true"},
    {"sdp_gradient_clipping", "1"},
    {"static_mode", "false"},
    {"static_mode_steps", "5"},
    {"fast_mode", "false"},
    {"custom_mpi_options", "\"\""},
};

TEST(Keys, EveryDocumentedParameterIsKnownWithItsDefault) {
  for (const auto& [name, text] : kDocumentedDefaults) {
    const Key* key = find_key(name);
    ASSERT_NE(key, nullptr) << name;
    EXPECT_EQ(default_of(*key), text) << name;
  }
  EXPECT_EQ(find_key("partitions"), find_key("pipeline_parallel_degree"));
  EXPECT_EQ(find_key("_prescaled_batch"), find_key("prescaled_batch"));
  EXPECT_EQ(find_key("_fp32_grad_accumulation"), find_key("fp32_grad_accumulation"));
  EXPECT_EQ(find_key("contiguous")->status, Status::kAvailable);
  EXPECT_EQ(find_key("horovod")->status, Status::kRefused);
  EXPECT_EQ(find_key("no_such_key"), nullptr);
}

TEST(Keys, EveryFieldOfTheStructHasItsRow) {
  std::ifstream header(std::string(TESSERA_SOURCE_DIR) + "/tessera/config/config.h");
  const std::regex field(R"(^  [A-Za-z_:0-9<>, ]+ ([a-z_0-9]+) = .*;$)");
  std::set<std::string> fields;
  for (std::string line; std::getline(header, line);) {
    std::smatch match;
    if (std::regex_match(line, match, field) && line.find("operator") == std::string::npos) {
      fields.insert(match[1]);
    }
  }
  std::set<std::string> rows;
  for (const Key& key : keys()) {
    if (key.status != Status::kRefused) {
      rows.insert(key.name);
    }
  }
  EXPECT_EQ(fields, rows);
}

TEST(Keys, NamesAndAliasesAreUnique) {
  std::set<std::string> names;
  for (const Key& key : keys()) {
    EXPECT_TRUE(names.insert(key.name).second) << key.name;
    for (const std::string& alias : key.aliases) {
      EXPECT_TRUE(names.insert(alias).second) << alias;
    }
    EXPECT_THAT(key.description, Not(IsEmpty())) << key.name;
    EXPECT_THAT(key.source, Not(IsEmpty())) << key.name;
    if (key.status == Status::kRefused) {
      EXPECT_THAT(key.reason, Not(IsEmpty())) << key.name;
    }
  }
}

// The keys whose function does not exist yet; shrinks with every feature.
TEST(Keys, NotYetAvailable) {
  std::set<std::string> names;
  for (const Key& key : keys()) {
    if (key.status == Status::kNotYet) {
      names.insert(key.name);
    }
  }
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("ddp_dist_backend"));
}

// A value of the key's type and range that is not its default.
std::string another_value(const Key& key) {
  switch (type_of(key)) {
    case Type::kBool:
      return get(key, Config{}) == Value{true} ? "false" : "true";
    case Type::kInteger:
      return "65537"; // at or above every lower bound, no default
    case Type::kNumber:
      return "0.5";
    case Type::kText:
      return "\"" + (key.choices.empty() ? "x" : key.choices.back()) + "\"";
    default:
      return R"({"a": 1})";
  }
}

TEST(Keys, EachIsReadAndEachMissingFunctionIsRefusedByName) {
  for (const Key& key : keys()) {
    if (key.status == Status::kRefused) {
      continue;
    }
    std::vector<std::string> names = key.aliases;
    names.push_back(key.name);
    const bool port = key.name == "ddp_port"; // 65537 is no port
    const std::string value = port ? "8888" : another_value(key);
    for (const std::string& name : names) {
      const std::string message = parse_error("{\"" + name + "\": " + value + "}");
      if (key.status == Status::kNotYet) {
        EXPECT_THAT(message, HasSubstr(name)) << message;
        EXPECT_THAT(message, HasSubstr("not available in this version")) << message;
      } else {
        EXPECT_THAT(message, Not(HasSubstr("not available"))) << message;
        EXPECT_THAT(message, Not(HasSubstr("unknown"))) << message;
      }
    }
  }
}

TEST(Keys, TheNeutralDefaultOfAMissingFunctionIsAccepted) {
  for (const Key& key : keys()) {
    const Value neutral = get(key, Config{});
    if (key.status == Status::kNotYet && !std::holds_alternative<std::monostate>(neutral)) {
      EXPECT_EQ(parse_config("{\"" + key.name + "\": " + to_text(neutral) + "}", "test"), Config{})
          << key.name;
    }
  }
}

TEST(Keys, EveryWrongTypeNamesKeyValueAndAllowed) {
  for (const Key& key : keys()) {
    if (key.status == Status::kRefused) {
      continue;
    }
    for (const std::string wrong : {"null", "[1]", "\"text\"", "true", "1.5", "{\"a\": \"b\"}"}) {
      const bool fits = (wrong == "true" && type_of(key) == Type::kBool) ||
                        (wrong == "1.5" && type_of(key) == Type::kNumber) ||
                        (wrong == "[1]" && type_of(key) == Type::kList) ||
                        (wrong == "\"text\"" && type_of(key) == Type::kText);
      if (fits) {
        continue;
      }
      // Of an object the first value that does not fit.
      const bool map = type_of(key) == Type::kMap;
      const std::string found = wrong[0] != '{' ? wrong : map ? "\"b\" at \"a\"" : "an object";
      EXPECT_EQ(
          parse_error("{\"" + key.name + "\": " + wrong + "}"),
          "test.json: " + key.name + ": found " + found + "; write " + allowed(key));
    }
  }
}

TEST(Keys, ListsAreReadAndWritten) {
  const Config config = parse_config(R"({"ddp": true, "replica_samples": [24, 8e0]})", "test");
  EXPECT_EQ(config.replica_samples, (std::vector<int>{24, 8}));
  EXPECT_EQ(parse_config(to_json(config), "again"), config);
  EXPECT_EQ(to_text(get(*find_key("replica_samples"), config)), "[24, 8]");
  EXPECT_EQ(default_of(*find_key("replica_samples")), "as many each");
  const std::vector<std::pair<std::string, std::string>> kWrong = {
      {"[24,0]", "0 at 1"}, {"[1.5]", "1.5 at 0"}, {"[1000001]", "1000001 at 0"}};
  for (const auto& [wrong, found] : kWrong) {
    EXPECT_EQ(
        parse_error("{\"replica_samples\": " + wrong + "}"),
        "test.json: replica_samples: found " + found +
            "; write a list of integers from 1 to 1000000");
  }
}

struct Bound {
  const char* key;
  const char* good;
  const char* bad;
  const char* allowed;
};

TEST(Keys, BoundsOfNumbersAndTexts) {
  const std::vector<Bound> bounds = {
      {"pipeline_parallel_degree", "1", "0", "an integer from 1 to 1000000"},
      {"pipeline_parallel_degree", "1e6", "1000001", "1000000"},
      {"partitions", "2", "-1", "an integer"},
      {"microbatches", "1", "0", "an integer from 1"},
      {"active_microbatches", "1", "0", "an integer from 1"},
      {"default_partition", "0", "-1", "an integer of at least 0"},
      {"default_partition", "0", "2147483648", "an integer"},
      {"memory_weight", "0", "-0.01", "a number from 0 to 1"},
      {"memory_weight", "1", "1.5", "a number from 0 to 1"},
      {"activation_loading_horizon", "4", "0", "an integer from 1"},
      {"processes_per_host", "1", "0", "an integer from 1"},
      {"seed", "9223372036854775807", "-1", "an integer of at least 0"},
      {"seed", "0", "9223372036854775808", "an integer of at least 0"},
      {"timeout_seconds", "0.001", "0", "a number greater than 0"},
      {"timeout_seconds", "31536000", "1e9", "at most 31536000"},
      {"transport_buffer_bytes", "65536", "65535", "at least 65536"},
      {"sdp_reduce_bucket_size", "5e8", "0.5", "an integer of at least 1"},
      {"pipeline", "\"simple\"", "\"gpipe\"", "\"interleaved\", \"simple\" or"},
      {"optimize", "\"speed\"", "\"fast\"", "\"memory\" or \"speed\""},
      {"tensor_parallel_kind", "\"2d\"", "\"3d\"", "\"1d\" or \"2d\""},
      {"placement_strategy", "\"PTD\"", "\"DDP\"", "\"cluster\", \"spread\""},
      {"same_node_backend", "\"shm\"", "\"tcp\"", "\"shm\""},
      {"random", "\"layout_independent\"", "\"philox\"", "\"by_task\" or \"layout_independent\""},
      {"trace_device", "\"cpu\"", "\"tpu\"", "\"cpu\""},
      {"partition_file", "\"p.json\"", "\"\"", "a text that is not empty"},
  };
  for (const Bound& bound : bounds) {
    const auto text = [&](const char* value) {
      return std::string("{\"") + bound.key + "\": " + value + "}";
    };
    EXPECT_EQ(parse_error(text(bound.good)), "no error");
    const std::string message = parse_error(text(bound.bad));
    EXPECT_THAT(message, HasSubstr(bound.key));
    EXPECT_THAT(message, HasSubstr(std::string("found ")));
    EXPECT_THAT(message, HasSubstr(bound.allowed));
  }
}

TEST(Keys, RefusedNamesSayWhy) {
  EXPECT_THAT(
      parse_error(R"({"horovod": false})"),
      HasSubstr("horovod: not a key of Tessera: it concerns TensorFlow only; "
                "write \"ddp\": true"));
  for (const Key& key : keys()) {
    if (key.status == Status::kRefused) {
      EXPECT_THAT(parse_error("{\"" + key.name + "\": true}"), HasSubstr(key.reason));
    }
  }
}

TEST(Nearest, EditDistance) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("pipeline", "pipline"), 1);
  EXPECT_EQ(edit_distance("ddp", "dpd"), 1); // neighbours swapped
  EXPECT_EQ(edit_distance("BF16", "bf16"), 0);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
}

TEST(Nearest, FindsTheKeyThatWasMeant) {
  const std::map<std::string, std::string> meant = {
      {"pipline", "pipeline"},
      {"micro_batches", "microbatches"},
      {"Tensor_Parallel_Degree", "tensor_parallel_degree"},
      {"ddp_backend", "ddp_dist_backend"},
      {"memory_wieght", "memory_weight"},
      {"active_microbatch", "active_microbatches"}};
  for (const auto& [written, key] : meant) {
    EXPECT_EQ(
        parse_error("{\"" + written + "\": 1}"),
        "test.json: \"" + written + "\": unknown key; the nearest known key is \"" + key + "\"");
  }
  EXPECT_EQ(
      parse_error("{\"lr\": 1}"),
      "test.json: \"lr\": unknown key; `tessera config --explain` lists the known ones");
}

} // namespace

} // namespace tessera::config::test
