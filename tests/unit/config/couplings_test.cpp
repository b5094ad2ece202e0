#include "tessera/config/couplings.h"

#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/config/keys.h"

#include "support.h"

namespace tessera::config::test {

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

struct Example {
  Config broken;
  Config kept; // the nearest configuration that obeys the rule
  std::string says;
};

// One example a rule; a rule without one fails EveryRuleHasAnExample.
const std::map<std::string, Example>& examples() {
  static const std::map<std::string, Example> map = {
      {"custom needs custom_schedule",
       {{.pipeline = "custom"},
        {.pipeline = "custom", .custom_schedule = "0F 0B"},
        "\"custom_schedule\": \"0F 0B\""}},
      {"custom_schedule needs custom",
       {{.pipeline = "simple", .custom_schedule = "0F 0B"},
        {.pipeline = "simple"},
        "pipeline is \"simple\""}},
      {"fast_mode needs static_mode",
       {{.fast_mode = true}, {.static_mode = true, .fast_mode = true}, "\"static_mode\": true"}},
      {"static_mode_steps needs static_mode",
       {{.static_mode_steps = 6},
        {.static_mode = true, .static_mode_steps = 6},
        "\"static_mode\": true"}},
      {"ddp_dist_backend needs ddp",
       {{.ddp_dist_backend = "nccl"}, {.ddp = true, .ddp_dist_backend = "nccl"}, "\"ddp\": true"}},
      {"ddp_port needs ddp",
       {{.ddp_port = 8888}, {.ddp = true, .ddp_port = 8888}, "\"ddp\": true"}},
      {"replica_samples needs ddp",
       {{.replica_samples = {3, 1}}, {.ddp = true, .replica_samples = {3, 1}}, "\"ddp\": true"}},
      {"replica_samples by microbatches",
       {{.microbatches = 2, .ddp = true, .replica_samples = {8, 3}},
        {.microbatches = 2, .ddp = true, .replica_samples = {8, 4}},
        "gives replica 1 3 samples, which 2 microbatches do not divide; write a multiple of 2"}},
      {"managed needs a mesh",
       {{.ddp = true, .tensor_parallel_degree = 4, .mesh_memory = "managed"},
        {.ddp = true,
         .tensor_parallel_degree = 4,
         .tensor_parallel_kind = "2d",
         .mesh_memory = "managed"},
        "tensor_parallel_kind is \"1d\" and tensor_parallel_degree 4"}},
      {"degrees of modules",
       {{.ddp = true, .tensor_parallel_degree = 4, .tensor_parallel_degree_of = {{"h.0", 2}}},
        {.ddp = true,
         .tensor_parallel_degree = 4,
         .tensor_parallel_degree_of = {{"h.0", 1}, {"h.1", 4}}},
        "tensor_parallel_degree_of \"h.0\" is 2"}},
      {"tensor_parallel_degree needs ddp",
       {{.tensor_parallel_degree = 2},
        {.ddp = true, .tensor_parallel_degree = 2},
        "tensor_parallel_degree is 2 but ddp is false"}},
      {"measuring needs parameters",
       {{.trace_execution_times = true, .delayed_parameter_initialization = true},
        {.delayed_parameter_initialization = true},
        "set one of them to false"}},
      {"manual needs default_partition",
       {{.auto_partition = false},
        {.auto_partition = false, .default_partition = 0},
        "\"default_partition\": 0"}},
      {"default_partition below degree",
       {{.pipeline_parallel_degree = 2, .default_partition = 2},
        {.pipeline_parallel_degree = 2, .default_partition = 1},
        "default_partition is 2 but pipeline_parallel_degree is 2; write 0 to "
        "1"}},
      {"partition below degree",
       {{.auto_partition = false, .partition = {{"a.b", 1}}},
        {.pipeline_parallel_degree = 2, .auto_partition = false, .partition = {{"a.b", 1}}},
        "partition of \"a.b\" is 1 but pipeline_parallel_degree is 1; write "
        "0"}},
      {"partition needs manual",
       {{.partition = {{"a", 0}}},
        {.auto_partition = false, .partition = {{"a", 0}}},
        "\"auto_partition\": false"}},
      {"load_partition needs partition_file",
       {{.load_partition = true},
        {.partition_file = "p.json", .load_partition = true},
        "\"partition_file\""}},
      {"load_partition excludes manual",
       {{.auto_partition = false,
         .default_partition = 0,
         .partition_file = "p.json",
         .load_partition = true},
        {.partition_file = "p.json", .load_partition = true},
        "keep one"}},
      {"measuring needs tracing",
       {{.skip_tracing = true, .trace_memory_usage = true},
        {.trace_execution_times = true, .trace_memory_usage = true},
        "trace_memory_usage"}},
      {"operations exclude",
       {{.ddp = true, .partition_mode = "operations", .tensor_parallel_degree = 2},
        {.ddp = true, .partition_mode = "operations"},
        "\"tensor_parallel_degree\" greater than 1"}},
      {"contiguous needs operations",
       {{.contiguous = false},
        {.partition_mode = "operations", .contiguous = false},
        "\"partition_mode\": \"operations\""}},
      {"tracing happens on the cpu",
       {{.trace_device = "gpu"}, {.trace_device = "cpu"}, "\"auto\""}},
      {"fp16 excludes bf16",
       {{.fp16 = true, .bf16 = true}, {.fp16 = true}, "fp16 and bf16 are both true"}},
      {"f32 sums need 16 bits",
       {{.fp32_grad_accumulation = true},
        {.bf16 = true, .fp32_grad_accumulation = true},
        "add \"fp16\": true or \"bf16\": true"}},
      {"horizon needs offloading",
       {{.activation_loading_horizon = 2},
        {.offload_activations = true, .activation_loading_horizon = 2},
        "\"offload_activations\": true"}},
      {"managed meshes recompute attentions",
       {{.ddp = true,
         .tensor_parallel_degree = 4,
         .tensor_parallel_kind = "2d",
         .mesh_memory = "managed",
         .checkpoint_attentions = true},
        {.ddp = true,
         .tensor_parallel_degree = 4,
         .tensor_parallel_kind = "2d",
         .checkpoint_attentions = true},
        "leave checkpoint_attentions out"}},
      {"shard_optimizer_state needs ddp",
       {{.shard_optimizer_state = true},
        {.ddp = true, .shard_optimizer_state = true},
        "\"ddp\": true"}},
      {"folder needs offloading",
       {{.offload_directory = "/var/tmp"},
        {.offload_activations = true, .offload_directory = "/var/tmp"},
        "\"offload_activations\": true"}},
      {"sdp keys need sharding",
       {{.sdp_hierarchical_allgather = false},
        {.sharded_data_parallel_degree = 2, .sdp_hierarchical_allgather = false},
        "sdp_hierarchical_allgather has no effect"}},
      {"sharding needs ddp",
       {{.sharded_data_parallel_degree = 2},
        {.ddp = true, .sharded_data_parallel_degree = 2},
        "\"ddp\": true"}},
      {"sharding excludes shard_optimizer_state",
       {{.shard_optimizer_state = true, .sharded_data_parallel_degree = 2},
        {.shard_optimizer_state = true},
        "leave shard_optimizer_state out"}},
      {"sharding with tensor needs prescaled",
       {{.tensor_parallel_degree = 2, .sharded_data_parallel_degree = 2},
        {.tensor_parallel_degree = 2, .prescaled_batch = true, .sharded_data_parallel_degree = 2},
        "\"prescaled_batch\": true"}},
  };
  return map;
}

TEST(Couplings, EveryRuleHasAnExample) {
  std::set<std::string> rules;
  for (const Coupling& coupling : couplings()) {
    EXPECT_TRUE(rules.insert(coupling.name).second) << coupling.name;
    EXPECT_EQ(examples().count(coupling.name), 1U) << coupling.name;
    for (const std::string& key : coupling.keys) {
      EXPECT_NE(find_key(key), nullptr) << key;
    }
  }
  EXPECT_EQ(rules.size(), examples().size());
}

TEST(Couplings, BrokenAndKept) {
  for (const Coupling& coupling : couplings()) {
    const Example& example = examples().at(coupling.name);
    EXPECT_THAT(coupling.broken(example.broken), HasSubstr(example.says)) << coupling.name;
    EXPECT_EQ(coupling.broken(example.kept), "") << coupling.name;
    EXPECT_EQ(coupling.broken(Config{}), "") << coupling.name;
    // The same through the validator, from code and from JSON.
    EXPECT_THAT(error_of([&] { validate(example.broken); }), HasSubstr(example.says));
    EXPECT_THAT(parse_error(to_json(example.broken)), HasSubstr(example.says));
  }
}

TEST(Couplings, OperationsNameEveryKeyThatTheyExclude) {
  const std::vector<std::pair<Config, std::string>> configs = {
      {{.skip_tracing = true}, "skip_tracing"},
      {{.partition_file = "p.json", .load_partition = true}, "load_partition"},
      {{.trace_memory_usage = true}, "trace_memory_usage"},
      {{.delayed_parameter_initialization = true}, "delayed_parameter_initialization"},
      {{.static_mode = true}, "static_mode"},
      {{.fp16 = true}, "fp16"},
      {{.bf16 = true}, "bf16"},
      {{.checkpoint_attentions = true}, "checkpoint_attentions"},
      {{.offload_activations = true}, "offload_activations"}};
  for (auto [config, key] : configs) {
    EXPECT_NO_THROW(validate(config)) << key;
    config.partition_mode = "operations";
    EXPECT_THAT(error_of([&, c = config] { validate(c); }), HasSubstr("excludes " + key));
  }
  EXPECT_NO_THROW(
      validate({.partition_mode = "operations", .auto_partition = false, .default_partition = 0}));
}

TEST(Couplings, EverySdpKeyNeedsSharding) {
  const std::vector<Config> configs = {
      {.sdp_reduce_bucket_size = 1},
      {.sdp_param_persistence_threshold = 0},
      {.sdp_max_live_parameters = 1},
      {.sdp_hierarchical_allgather = false},
      {.sdp_gradient_clipping = 2.0}};
  for (const Config& config : configs) {
    EXPECT_THAT(
        error_of([&] { validate(config); }),
        HasSubstr("has no effect without \"sharded_data_parallel_degree\""));
  }
}

TEST(Couplings, AWrongKeyGivesOneMessage) {
  // default_partition is wrong by itself; that auto_partition then lacks one
  // would be a second message for the same mistake.
  EXPECT_EQ(
      parse_error(R"({"auto_partition": false, "default_partition": "x"})"),
      "test.json: default_partition: found \"x\"; write an integer of at least "
      "0");
}

TEST(Couplings, AManualPartitionMayBeAMapAlone) {
  const Config config = parse_config(
      R"({"partitions": 2, "auto_partition": false,
          "partition": {"encoder": 0, "decoder": 1}})",
      "test");
  EXPECT_EQ(config.partition.at("decoder"), 1);
  EXPECT_EQ(config.effective_default_partition(), 0);
}

TEST(Couplings, FromCodeDegreesOutOfRangeAreErrorsToo) {
  EXPECT_THAT(
      error_of([] { validate({.pipeline_parallel_degree = 0}); }),
      AllOf(HasSubstr("config: "), HasSubstr("found 0; write an integer")));
  EXPECT_THAT(error_of([] { validate({.pipeline = "gpipe"}); }), HasSubstr("found \"gpipe\""));
  EXPECT_THAT(
      error_of([] { validate({.memory_weight = std::numeric_limits<double>::quiet_NaN()}); }),
      HasSubstr("memory_weight: found nan"));
  EXPECT_NO_THROW(validate({}));
}

} // namespace

} // namespace tessera::config::test
