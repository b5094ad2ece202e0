#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/graph/model_graph.h"

#include "tests/unit/graph/graph_builder.h"

namespace tessera::graph {
namespace {

using Json = nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

ModelGraph small_model() {
  GraphBuilder model("small");
  const int a = model.leaf(0, "a", 6);
  model.graph().parameters[0].shape = {2, 3};
  const int b = model.add(a, "b");
  model.share(b, 0);
  model[a].first_call = 1;
  model[a].calls = 2;
  model[a].forward_seconds = 0.1;
  model[a].activation_bytes = 12;
  model[a].returned_bytes = 24;
  model[b].manual_partition = 3;
  model.graph().traced = true;
  model.graph().timed = true;
  return model.graph();
}

std::string error_of(const std::string& text) {
  try {
    model_graph_from_json(text);
  } catch (const PlanError& error) {
    return error.what();
  }
  return "no error";
}

std::string error_of(const ModelGraph& graph) {
  try {
    validate(graph);
  } catch (const PlanError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ModelGraphJson, RoundTripKeepsEveryField) {
  const ModelGraph graph = small_model();
  const ModelGraph read = model_graph_from_json(to_json(graph));
  EXPECT_EQ(read.name, "small");
  EXPECT_TRUE(read.traced);
  EXPECT_TRUE(read.timed);
  ASSERT_EQ(read.modules.size(), 3U);
  EXPECT_EQ(read.modules[0].children, (std::vector<int>{1}));
  EXPECT_EQ(read.modules[1].path, "a");
  EXPECT_EQ(read.modules[1].type, "Layer");
  EXPECT_EQ(read.modules[1].parent, 0);
  EXPECT_EQ(read.modules[1].parameters, (std::vector<int>{0}));
  EXPECT_EQ(read.modules[1].first_call, 1);
  EXPECT_EQ(read.modules[1].calls, 2);
  EXPECT_EQ(read.modules[1].forward_seconds, 0.1);
  EXPECT_EQ(read.modules[1].activation_bytes, 12);
  EXPECT_EQ(read.modules[1].returned_bytes, 24);
  EXPECT_EQ(read.modules[2].manual_partition, 3);
  ASSERT_EQ(read.parameters.size(), 1U);
  EXPECT_EQ(read.parameters[0].name, "a.weight");
  EXPECT_EQ(read.parameters[0].shape, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(read.parameters[0].dtype, "float32");
  EXPECT_EQ(read.parameters[0].elements, 6);
  EXPECT_EQ(read.parameters[0].bytes, 24);
}

TEST(ModelGraphJson, RandomGraphsRoundTripToTheSameText) {
  std::mt19937 random(11);
  for (int size = 1; size <= 60; ++size) {
    const std::string text = to_json(random_graph(random, size));
    EXPECT_EQ(to_json(model_graph_from_json(text)), text);
  }
}

TEST(ModelGraphJson, EveryMissingOrMistypedFieldIsNamed) {
  const Json good = Json::parse(to_json(small_model()));
  const auto check = [&](const Json::json_pointer& object, const std::string& where) {
    for (const auto& [name, value] : good[object].items()) {
      Json missing = good;
      missing[object].erase(name);
      if (name == "returned_bytes") {
        EXPECT_EQ(error_of(missing.dump()), "no error"); // older files have none
      } else {
        EXPECT_THAT(
            error_of(missing.dump()),
            AllOf(HasSubstr(where), HasSubstr(str(name, "' is missing"))));
      }
      Json mistyped = good;
      mistyped[object][name] = Json::object();
      EXPECT_THAT(
          error_of(mistyped.dump()), AllOf(HasSubstr(where), HasSubstr(str(name, "' must be"))));
    }
    Json unknown = good;
    unknown[object]["colour"] = 1;
    EXPECT_THAT(error_of(unknown.dump()), HasSubstr("colour'"));
  };
  check(Json::json_pointer(""), "model graph: ");
  check(Json::json_pointer("/modules/1"), "'modules[1].");
  check(Json::json_pointer("/parameters/0"), "'parameters[0].");
}

TEST(ModelGraphJson, OtherFilesAndTornFilesAreRefused) {
  const std::string good = to_json(small_model());
  EXPECT_THAT(error_of(good.substr(0, good.size() / 2)), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of(std::string()), HasSubstr("not valid JSON"));
  EXPECT_THAT(error_of(std::string("[]")), HasSubstr("expected an object"));
  EXPECT_THAT(error_of(std::string(R"({"format":"tessera.plan"})")), HasSubstr("tessera.plan"));
  Json other = Json::parse(good);
  other["version"] = 2;
  EXPECT_THAT(
      error_of(other.dump()),
      HasSubstr("'version' is 2; this program reads version 1, use the one"));
  Json huge = Json::parse(good);
  huge["parameters"][0]["bytes"] = UINT64_MAX;
  EXPECT_THAT(error_of(huge.dump()), HasSubstr("'parameters[0].bytes'"));
  huge = Json::parse(good);
  huge["modules"][1]["calls"] = 1LL << 40;
  EXPECT_THAT(error_of(huge.dump()), HasSubstr("'modules[1].calls'"));
}

TEST(ModelGraphJson, ANumberThatNoDoubleHoldsIsRefused) {
  EXPECT_THROW(model_graph_from_json("[1e999]"), PlanError);
}

TEST(ModelGraphJson, EveryBrokenRuleIsFound) {
  struct Case {
    const char* text;
    std::function<void(ModelGraph&)> damage;
  };
  const std::vector<Case> cases = {
      {"no modules", [](auto& g) { g.modules.clear(); }},
      {"modules[0] is the root", [](auto& g) { g.modules[0].parent = 1; }},
      {"path is \"\"", [](auto& g) { g.modules[0].path = "net"; }},
      {"must differ", [](auto& g) { g.modules[2].path = "a"; }},
      {"pre-order", [](auto& g) { g.modules[1].parent = 2; }},
      {"pre-order", [](auto& g) { g.modules[2].parent = 9; }},
      {"pre-order", [](auto& g) { g.modules[1].parent = -1; }},
      {".children[0]", [](auto& g) { g.modules[0].children = {}; }},
      {".children[0]", [](auto& g) { g.modules[0].children = {2}; }},
      {".children[0]", [](auto& g) { g.modules[2].children = {1}; }},
      {".children[1]",
       [](auto& g) {
         g.modules[0].children = {1, 2};
       }},
      {".parameters: found 1", [](auto& g) { g.modules[1].parameters = {1}; }},
      {".parameters: found -1", [](auto& g) { g.modules[1].parameters = {-1}; }},
      {"twice",
       [](auto& g) {
         g.modules[1].parameters = {0, 0};
       }},
      {"held by no module",
       [](auto& g) {
         g.modules[1].parameters = {};
         g.modules[2].parameters = {};
       }},
      {".elements: found 6; the shape has 8",
       [](auto& g) {
         g.parameters[0].shape = {2, 4};
       }},
      {".elements",
       [](auto& g) {
         g.parameters[0].shape = {-2, -3};
       }},
      {".elements",
       [](auto& g) {
         g.parameters[0].shape = {1LL << 40, 1LL << 40};
       }},
      {".bytes", [](auto& g) { g.parameters[0].bytes = -1; }},
      {"forward_seconds", [](auto& g) { g.modules[1].forward_seconds = NAN; }},
      {"forward_seconds", [](auto& g) { g.modules[1].forward_seconds = -1; }},
      {"returned_bytes", [](auto& g) { g.modules[1].returned_bytes = -1; }},
      {"activation_bytes", [](auto& g) { g.modules[1].activation_bytes = -1; }},
      {"calls", [](auto& g) { g.modules[1].calls = -1; }},
      {"first_call", [](auto& g) { g.modules[1].first_call = -2; }},
      {"manual_partition", [](auto& g) { g.modules[1].manual_partition = -2; }},
  };
  EXPECT_EQ(error_of(small_model()), "no error");
  for (std::size_t i = 0; i < cases.size(); ++i) {
    ModelGraph graph = small_model();
    cases[i].damage(graph);
    EXPECT_THAT(error_of(graph), HasSubstr(cases[i].text)) << "case " << i;
    EXPECT_THROW(to_json(graph), PlanError) << "case " << i;
    EXPECT_THROW(build_module_tree(graph), PlanError) << "case " << i;
  }
}

} // namespace
} // namespace tessera::graph
