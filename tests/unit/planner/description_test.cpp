#include "tessera/planner/description.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"

namespace tessera::planner {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json model() {
  return json::parse(R"({
    "name": "m", "global_batch_size": 8, "sequence_length": 16,
    "num_attention_heads": 2,
    "precision": "fp16 parameters", "activation_checkpointing": "every layer",
    "layers": [
      {"name": "a", "kind": "embedding", "parameters": 10,
       "output_elements_per_sample": 4,
       "forward_seconds_per_sample": {"t4": {"1": 0.5, "2": 0.25}}},
      {"name": "b", "kind": "lm_head", "parameters": 0,
       "shares_parameters_with": "a", "output_elements_per_sample": 4,
       "forward_seconds_per_sample": {"t4": {"1": 0.5}}}]})");
}

json cluster() {
  return json::parse(R"({
    "name": "c", "devices": {"t4": {"memory_gib": 15}},
    "nodes": [
      {"device": "t4", "count": 4, "intra_node_gbit_per_s": 50,
       "inter_node_gbit_per_s": 10},
      {"device": "t4", "count": 2, "intra_node_gbit_per_s": 50,
       "inter_node_gbit_per_s": 10}]})");
}

std::string refusal_of_model(const json& value) {
  try {
    model_from_json(value.dump(), "m.json");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

std::string refusal_of_cluster(const json& value) {
  try {
    cluster_from_json(value.dump(), "c.json");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Description, ReadsAModel) {
  const auto read = model_from_json(model().dump(), "m.json");
  EXPECT_EQ(read.global_batch_size, 8);
  EXPECT_TRUE(read.activation_checkpointing);
  EXPECT_EQ(read.precision, cost::Precision::kHalf);
  ASSERT_EQ(read.layers.size(), 2u);
  EXPECT_EQ(read.measured().layers[0].forward_seconds_per_sample.at("t4").at(2), 0.25);
  EXPECT_THAT(read.shared_with(), testing::ElementsAre(-1, 0));
  EXPECT_THAT(read.measured_degrees("t4"), testing::ElementsAre(1));
}

TEST(Description, AModelWithoutSecondsIsOneOfSizes) {
  json value = model();
  for (json& layer : value["layers"]) {
    layer.erase("forward_seconds_per_sample");
    layer["output_elements_per_sample"] = layer["kind"] == "lm_head" ? 512 : 64;
  }
  EXPECT_THAT(refusal_of_model(value), HasSubstr("vocabulary_size"));
  value["vocabulary_size"] = 32;
  value["gated_feed_forward"] = true;
  const auto read = model_from_json(value.dump(), "m.json");
  ASSERT_NE(read.sized(), nullptr);
  EXPECT_TRUE(read.sized()->gated_feed_forward);
  EXPECT_FALSE(read.sized()->recomputation_stops_early);
  EXPECT_EQ(read.sized()->attention, cost::AttentionKernels::kOne);
  value["attention"] = "fused softmax";
  EXPECT_EQ(
      model_from_json(value.dump(), "m.json").sized()->attention,
      cost::AttentionKernels::kFusedSoftmax);
  value["recomputation_stops_early"] = true;
  EXPECT_TRUE(model_from_json(value.dump(), "m.json").sized()->recomputation_stops_early);
  value["attention"] = "fast";
  EXPECT_THAT(refusal_of_model(value), HasSubstr("attention"));
  value.erase("attention");
  EXPECT_THAT(read.measured_degrees("any"), testing::ElementsAre(1, 2));
  value["layers"][0]["output_elements_per_sample"] = 65;
  EXPECT_THAT(refusal_of_model(value), HasSubstr("write a multiple of sequence_length, 16"));
}

// One of two numbers that contradict each other is wrong, and prices would follow from both.
TEST(Description, SizesThatContradictEachOtherAreRefused) {
  json value = json::parse(R"({
    "name": "m", "global_batch_size": 8, "sequence_length": 16, "num_attention_heads": 2,
    "vocabulary_size": 32, "hidden_size": 4, "precision": "fp16",
    "layers": [
      {"name": "a", "kind": "transformer_layer", "parameters": 192,
       "output_elements_per_sample": 64},
      {"name": "b", "kind": "lm_head", "parameters": 128, "output_elements_per_sample": 512}]})");
  EXPECT_EQ(refusal_of_model(value), "accepted");
  const auto with = [&](const char* name, int wrong) {
    json other = value;
    other[name] = wrong;
    return refusal_of_model(other);
  };
  EXPECT_THAT(with("vocabulary_size", 33), HasSubstr("vocabulary_size 33 are 528"));
  EXPECT_THAT(with("hidden_size", 8), HasSubstr("4 for each of 16 tokens, but hidden_size is 8"));
  EXPECT_THAT(with("num_key_value_heads", 3), HasSubstr("a divisor of num_attention_heads, 2"));
  EXPECT_EQ(with("num_key_value_heads", 1), "accepted");
  EXPECT_THAT(with("num_attention_heads", 3), HasSubstr("no multiple of num_attention_heads, 3"));
  const auto with_metric = [&](int behind, int parameters, int outputs) {
    json other = value;
    const json metric = {
        {"name", "m"},
        {"kind", "metric"},
        {"parameters", parameters},
        {"output_elements_per_sample", outputs}};
    other["layers"].insert(other["layers"].begin() + behind, metric);
    return refusal_of_model(other);
  };
  EXPECT_EQ(with_metric(2, 0, 0), "accepted");
  EXPECT_THAT(with_metric(1, 0, 0), HasSubstr("write it behind the lm_head"));
  EXPECT_THAT(with_metric(2, 1, 0), HasSubstr("with 0 for both"));
  EXPECT_THAT(with_metric(2, 0, 16), HasSubstr("with 0 for both"));
  value["layers"][0]["parameters"] = 63;
  EXPECT_THAT(refusal_of_model(value), HasSubstr("an attention 4 wide alone have 64"));
  value["num_key_value_heads"] = 1; // half as many keys and values
  EXPECT_EQ(refusal_of_model(value), "accepted");
}

TEST(Description, ReadsACluster) {
  const auto read = cluster_from_json(cluster().dump(), "c.json");
  EXPECT_EQ(read.device_count(), 6);
  EXPECT_THAT(read.node_of_device(), testing::ElementsAre(0, 0, 0, 0, 1, 1));
  EXPECT_EQ(read.nodes[0].intra_bytes_per_s, 6.25e9);
  EXPECT_EQ(read.kinds[0].memory_bytes_per_s, 320e9); // known by its name
  EXPECT_EQ(read.kinds[0].launch_seconds, 75e-6);
}

TEST(Description, TheFileSaysHowFastAHostLaunches) {
  json value = cluster();
  value["devices"]["t4"]["launch_us"] = 8;
  EXPECT_DOUBLE_EQ(cluster_from_json(value.dump(), "c.json").kinds[0].launch_seconds, 8e-6);
  value["devices"]["t4"]["launch_us"] = 0;
  EXPECT_THAT(refusal_of_cluster(value), HasSubstr("launch_us"));
}

TEST(Description, RefusesImpossibleModels) {
  json value = model();
  value["layers"][0]["forward_seconds_per_sample"]["t4"]["1"] = -1;
  EXPECT_THAT(
      refusal_of_model(value),
      HasSubstr("m.json: 'layers[0].forward_seconds_per_sample.t4.1' must be a number of at least "
                "0, found -1"));
  value = model();
  value["layers"][0]["forward_seconds_per_sample"]["t4"].erase("1");
  EXPECT_THAT(refusal_of_model(value), HasSubstr("degree 1 is missing"));
  value = model();
  value["layers"][0]["forward_seconds_per_sample"] = {{"t4", json::object()}};
  value["layers"][0]["fixed_seconds"] = {{"t4", 0.1}};
  EXPECT_THAT(refusal_of_model(value), HasSubstr("t4: degree 1 is missing"));
  value = model();
  value["layers"][0]["forward_seconds_per_sample"]["t4"]["two"] = 1;
  EXPECT_THAT(refusal_of_model(value), HasSubstr("'two' is no"));
  value = model();
  value["layers"][1]["shares_parameters_with"] = "c";
  EXPECT_THAT(refusal_of_model(value), HasSubstr("name of another layer"));
  value = model();
  value["layers"][1]["name"] = "a";
  EXPECT_THAT(refusal_of_model(value), HasSubstr("stands twice"));
  value = model();
  value["precision"] = "int4";
  EXPECT_THAT(refusal_of_model(value), HasSubstr("must be a text that begins with"));
  value = model();
  value["batch"] = 3;
  EXPECT_THAT(refusal_of_model(value), HasSubstr("unknown field 'batch'"));
  value = model();
  value.erase("layers");
  EXPECT_THAT(refusal_of_model(value), HasSubstr("'layers' is missing"));
}

TEST(Description, RefusesImpossibleClusters) {
  json value = cluster();
  value["nodes"][1]["inter_node_gbit_per_s"] = 0;
  EXPECT_THAT(
      refusal_of_cluster(value), AllOf(HasSubstr("nodes[1]"), HasSubstr("cannot be reached")));
  value = cluster();
  value["nodes"][0]["intra_node_gbit_per_s"] = 0;
  EXPECT_THAT(refusal_of_cluster(value), HasSubstr("cannot reach each other"));
  value = cluster();
  value["nodes"][0]["device"] = "t5";
  EXPECT_THAT(refusal_of_cluster(value), HasSubstr("the nearest is \"t4\""));
  value = cluster();
  value["devices"]["t4"]["memory_gib"] = 0;
  EXPECT_THAT(refusal_of_cluster(value), HasSubstr("devices.t4.memory_gib"));
  value = cluster();
  value["nodes"] = json::array();
  EXPECT_THAT(refusal_of_cluster(value), HasSubstr("nodes: found none"));
}

TEST(Description, WhatProbeWritesIsReadBack) {
  cost::Cluster cluster;
  cluster.name = "measured";
  cluster.measured = true;
  cost::DeviceKind kind;
  kind.name = "cpu";
  kind.memory_bytes = 3.5 * (1 << 30);
  kind.memory_bytes_per_s = 7e9;
  kind.update_bytes_per_s = 9e9;
  kind.speed.products["f32"] = {{8, 1e-6}, {512, 3e-3}};
  kind.speed.moves = kind.speed.functions = {{16, 1e-6}, {4096, 2e-6}};
  kind.speed.random = {{16, 5e-6}};
  kind.speed.batched_products["bf16"] = {{8, 1e-6, 3e-6}};
  kind.speed.weights = {{65536, 2e-5, 3e-5}};
  kind.speed.operators["gelu.tanh"] = {{16, 1e-6, 2e-6}};
  cluster.kinds.push_back(kind);
  cluster.nodes = {
      {.kind = 0,
       .count = 2,
       .intra_bytes_per_s = 4e9,
       .inter_bytes_per_s = 1e8,
       .cores = 1.5,
       .latency_seconds = 5e-6,
       .host = "a"},
      {.kind = 0, .count = 1, .inter_bytes_per_s = 1e8, .host = "b"}};
  cluster.links = {{.first = 0, .second = 1, .bytes_per_s = 1e8, .latency_seconds = 4e-5}};
  cluster.collectives = {{"all_reduce", 2, 1, 65536, 1e-4, {1}}};
  cluster.waiting = {{.ranks = 2, .share = 0.125}};
  cluster.quality.rounds = 3;
  cluster.quality.inferred = 2;
  cluster.quality.foreign_processors = 0.25;
  const std::string text = cluster_to_json(cluster);
  const auto read = cluster_from_json(text, "c.json");
  EXPECT_EQ(cluster_to_json(read), text);
  EXPECT_TRUE(read.measured);
  EXPECT_EQ(read.quality.inferred, 2);
  EXPECT_EQ(read.kinds[0].update_bytes_per_s, 9e9);
  EXPECT_EQ(read.quality.foreign_processors, 0.25);
  EXPECT_EQ(read.kinds[0].speed.products.at("f32").back().seconds, 3e-3);
  EXPECT_EQ(read.kinds[0].speed.products.at("f32").back().backward_seconds, 0);
  EXPECT_EQ(read.kinds[0].speed.operators.at("gelu.tanh")[0].backward_seconds, 2e-6);
  EXPECT_EQ(read.kinds[0].speed.weights[0].seconds, 2e-5);
  EXPECT_DOUBLE_EQ(read.nodes[0].cores, 1.5);
  EXPECT_EQ(read.nodes[1].host, "b");
  EXPECT_EQ(read.collectives[0].seconds, 1e-4);
  EXPECT_EQ(read.collectives[0].among, cost::NodeSet{1});
  EXPECT_EQ(read.waiting_share(2), 0.125);
  EXPECT_EQ(read.waiting_share(3), 0);
}

TEST(Description, RefusesImpossibleMeasurements) {
  json value = cluster();
  value["links"] = json::parse(R"([{"nodes": [0, 1], "gbit_per_s": 0}])");
  EXPECT_THAT(
      refusal_of_cluster(value),
      AllOf(HasSubstr("links[0]"), HasSubstr("nodes 0 and 1 cannot reach")));
  value["links"] = json::parse(R"([{"nodes": [0, 2], "gbit_per_s": 1}])");
  EXPECT_THAT(refusal_of_cluster(value), HasSubstr("two different nodes"));
  value = cluster();
  value["devices"]["t4"]["move_seconds"] = json::parse("[[16, -1]]");
  EXPECT_THAT(refusal_of_cluster(value), HasSubstr("move_seconds"));
  value["devices"]["t4"]["move_seconds"] = json::parse("[[16, 1, 1, 1]]");
  EXPECT_THAT(
      refusal_of_cluster(value), AllOf(HasSubstr("backward seconds"), HasSubstr("[16,1,1,1]")));
  value["devices"]["t4"]["move_seconds"] = json::parse("[[16, 1]]");
  EXPECT_THAT(refusal_of_cluster(value), HasSubstr("belong together"));
  value = cluster();
  value["collectives"] = json::parse(
      R"([{"operation": "all_reduce", "ranks": 1, "nodes": 1, "bytes": 1,
           "seconds": 1}])");
  EXPECT_THAT(
      refusal_of_cluster(value),
      HasSubstr("'collectives[0].ranks' must be an integer from 2 to 2147483647, found 1"));
  value = cluster();
  value["waiting"] = json::parse(R"([{"ranks": 2, "share": -0.5}])");
  EXPECT_THAT(refusal_of_cluster(value), HasSubstr("waiting[0].share"));
  value = cluster();
  value["measured"] = 1;
  EXPECT_THAT(refusal_of_cluster(value), HasSubstr("true or false"));
}

TEST(Description, AnyBytesAreSafe) {
  for (const char* text : {"", "[", "{}", "\"x\"", "{\"name\":1,\"name\":2}"}) {
    EXPECT_THROW(model_from_json(text, "f"), ConfigError) << text;
    EXPECT_THROW(cluster_from_json(text, "f"), ConfigError) << text;
  }
  EXPECT_THROW(load_model("/nowhere/at/all.json"), ConfigError);
}

TEST(Description, TheSchemaNamesEveryFieldThatIsRead) {
  const json schema = json::parse(planner::schema());
  const json& parts = schema.at("$defs");
  const json read_model = model();
  const json read_layer = read_model.at("layers").at(1);
  const json read_node = cluster().at("nodes").at(0);
  const json& node = parts.at("cluster").at("properties").at("nodes");
  for (const auto& item : read_model.items()) {
    EXPECT_TRUE(parts["model"]["properties"].contains(item.key()));
  }
  for (const auto& item : read_layer.items()) {
    EXPECT_TRUE(parts["layer"]["properties"].contains(item.key()));
  }
  for (const auto& item : read_node.items()) {
    EXPECT_TRUE(node["items"]["properties"].contains(item.key()));
  }
}

} // namespace
} // namespace tessera::planner
