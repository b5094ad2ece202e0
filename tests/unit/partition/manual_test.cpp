#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/partition/partition.h"

#include "tests/unit/graph/graph_builder.h"

namespace tessera::partitioning {
namespace {

using graph::GraphBuilder;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// root { a { b { c } }, d }
struct Model {
  GraphBuilder builder{"net"};
  int a = builder.leaf(0, "a", 1);
  int b = builder.leaf(a, "b", 1);
  int c = builder.leaf(b, "c", 1);
  int d = builder.leaf(0, "d", 1);
};

Options manual(int partitions, int default_partition) {
  Options options;
  options.partitions = partitions;
  options.auto_partition = false;
  options.default_partition = default_partition;
  return options;
}

std::string error_of(GraphBuilder& builder, const Options& options) {
  try {
    partition(builder.graph(), options);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ManualPartition, NearestAncestorElseDefault) {
  Model model;
  model.builder[model.b].manual_partition = 2;
  const Result result = partition(model.builder.graph(), manual(3, 1));
  EXPECT_THAT(
      result.partition,
      ElementsAre(
          std::pair("", 1),
          std::pair("a", 1),
          std::pair("a.b", 2),
          std::pair("a.b.c", 2),
          std::pair("d", 1)));
  EXPECT_THAT(result.partition_of_node, ElementsAre(1, 1, 2, 2, 1));
  EXPECT_TRUE(result.segments.empty());
  EXPECT_THAT(result.warnings, ElementsAre(HasSubstr("partition 0")));
}

TEST(ManualPartition, OptionsComeBeforeTheModulesOwn) {
  Model model;
  model.builder[model.b].manual_partition = 2;
  Options options = manual(4, 1);
  options.manual = {{"a.b", 0}, {"d", 3}, {"", 2}};
  const Result result = partition(model.builder.graph(), options);
  EXPECT_THAT(result.partition_of_node, ElementsAre(2, 2, 0, 0, 3));
}

TEST(ManualPartition, TotalsAreOfTheWholeModel) {
  Model model;
  model.builder[model.d].manual_partition = 1;
  Options options = manual(2, 0);
  options.memory_weight = 1;
  const Result result = partition(model.builder.graph(), options);
  EXPECT_THAT(result.total, ElementsAre(testing::DoubleEq(.75), testing::DoubleEq(.25)));
  EXPECT_TRUE(result.warnings.empty());
}

TEST(ManualPartition, SharersPlacedApartAreNamedWithTheirParameter) {
  Model model;
  model.builder.share(model.d, 2); // a.b.c.weight
  model.builder[model.d].manual_partition = 1;
  EXPECT_THAT(
      error_of(model.builder, manual(2, 0)),
      AllOf(
          HasSubstr("module \"a.b.c\" is placed on partition 0"),
          HasSubstr("module \"d\" on partition 1"),
          HasSubstr("\"a.b.c.weight\"")));
  model.builder[model.c].manual_partition = 1;
  EXPECT_EQ(error_of(model.builder, manual(2, 0)), "no error");
}

TEST(ManualPartition, IndicesOutsideTheDegreeAreRefused) {
  Model model;
  EXPECT_THAT(
      error_of(model.builder, manual(2, 2)),
      AllOf(HasSubstr("default_partition: found partition 2"), HasSubstr("0 to 1")));
  EXPECT_THAT(
      error_of(model.builder, manual(2, -1)), HasSubstr("default_partition: found partition -1"));
  model.builder[model.b].manual_partition = 7;
  EXPECT_THAT(
      error_of(model.builder, manual(2, 0)), HasSubstr("module \"a.b\": found partition 7"));
  Options options = manual(2, 0);
  options.manual = {{"a.b", -1}};
  EXPECT_THAT(error_of(model.builder, options), HasSubstr("module \"a.b\": found partition -1"));
  EXPECT_THAT(
      error_of(model.builder, manual(0, 0)), HasSubstr("pipeline_parallel_degree: found 0"));
}

TEST(ManualPartition, UnknownPathsAreRefused) {
  Model model;
  Options options = manual(2, 0);
  options.manual = {{"a.x", 1}};
  EXPECT_THAT(error_of(model.builder, options), AllOf(HasSubstr("\"a.x\""), HasSubstr("\"net\"")));
}

TEST(ManualPartition, IsIgnoredWithAWarningInAutomaticMode) {
  Model model;
  Options options;
  options.partitions = 1;
  options.manual = {{"a", 5}};
  const Result result = partition(model.builder.graph(), options);
  EXPECT_THAT(result.warnings, ElementsAre(HasSubstr("auto_partition")));
  EXPECT_EQ(result.partition.at("a"), 0);
}

} // namespace
} // namespace tessera::partitioning
