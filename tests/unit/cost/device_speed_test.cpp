#include "tessera/cost/device_speed.h"

#include <cmath>

#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/cost/constants.h"
#include "tessera/cost/data_sheets.h"

#include "tests/unit/cost/small_cases.h"

namespace tessera::cost {
namespace {

using Kind = graph::OperatorWork::Kind;

DeviceSpeed simple_speed() {
  DeviceSpeed speed;
  // 1 GFLOP/s from size 10 on; starting costs a microsecond.
  speed.products["f32"] = {{1, 1e-6}, {10, 2e-6}, {100, 2e-3}};
  speed.moves = {{1, 1e-6}, {1000, 1e-6}, {1e6, 1e-3}};
  speed.functions = {{1, 1e-6}, {1e6, 1e-2}};
  speed.random = {{1, 1e-6}, {1e6, 2e-2}};
  return speed;
}

graph::OperatorWork product(double rows, double inner, double columns) {
  graph::OperatorWork work;
  work.kind = Kind::kProduct;
  work.count = 1;
  work.rows = rows;
  work.inner = inner;
  work.columns = columns;
  work.elements = rows * columns;
  return work;
}

double forward_of(const graph::OperatorWork& work, const DeviceSpeed& speed) {
  return pass_seconds(work, speed, Precision::kFull).forward;
}

graph::OperatorWork function(const std::string& name, double elements) {
  graph::OperatorWork work;
  work.name = name;
  work.kind = Kind::kFunction;
  work.elements = elements;
  return work;
}

TEST(DeviceSpeed, PointsAreInterpolatedAndExtended) {
  const std::vector<MeasuredPoint> points = {{10, 1e-6}, {1000, 1e-4}};
  EXPECT_DOUBLE_EQ(seconds_at(points, 1, 1), 1e-6);
  EXPECT_NEAR(seconds_at(points, 100, 1), 1e-5, 1e-12);
  EXPECT_NEAR(seconds_at(points, 4000, 1), 4e-4, 1e-12);
  EXPECT_NEAR(seconds_at(points, 2000, 3), 8e-4, 1e-12);
}

TEST(DeviceSpeed, ProductsGoByTheirVolumeAndAtLeastAsMovesDo) {
  const DeviceSpeed speed = simple_speed();
  EXPECT_NEAR(forward_of(product(100, 100, 100), speed), 2e-3, 1e-9);
  EXPECT_NEAR(forward_of(product(50, 200, 100), speed), 2e-3, 1e-9);
  graph::OperatorWork many = product(10, 10, 10);
  many.count = 7;
  EXPECT_NEAR(forward_of(many, speed), 14e-6, 1e-12);
  // 1e6 x 1 x 1: two million elements are moved for two million operations.
  const double narrow = forward_of(product(1e6, 1, 1), speed);
  EXPECT_NEAR(narrow, 2e-3, 2e-4);
  EXPECT_THROW(pass_seconds(product(2, 2, 2), speed, Precision::kHalf), ConfigError);
  // Both operands and the result are moved.
  DeviceSpeed slow = speed;
  slow.moves = {{1, 1e-8}, {1e6, 1e-2}};
  EXPECT_NEAR(forward_of(product(1000, 1, 1000), slow), 1e-8 * 1'002'000 / 3, 1e-9);
  EXPECT_NEAR(forward_of(product(1000, 1000, 1), slow), 1e-8 * 1'002'000 / 3, 1e-9);
}

TEST(DeviceSpeed, BackwardsAreTwoProductsAndNoNewRandomNumbers) {
  const DeviceSpeed speed = simple_speed();
  const PassSeconds both = pass_seconds(product(100, 100, 100), speed, Precision::kFull);
  EXPECT_DOUBLE_EQ(both.backward, 2 * both.forward);
  graph::OperatorWork mask;
  mask.kind = Kind::kRandom;
  mask.elements = 1e6;
  EXPECT_DOUBLE_EQ(pass_seconds(mask, speed, Precision::kFull).forward, 2e-2);
  EXPECT_DOUBLE_EQ(pass_seconds(mask, speed, Precision::kFull).backward, 1e-3);
}

TEST(DeviceSpeed, ConstantsHaveNoBackward) {
  graph::OperatorWork work = function("aten::exp", 1e6);
  EXPECT_GT(pass_seconds(work, simple_speed(), Precision::kFull).backward, 0);
  work.has_adjoint = false;
  const PassSeconds constant = pass_seconds(work, simple_speed(), Precision::kFull);
  EXPECT_DOUBLE_EQ(constant.forward, 1e-2);
  EXPECT_EQ(constant.backward, 0);
}

TEST(DeviceSpeed, MeasuredBackwardsReplaceTheRules) {
  DeviceSpeed speed = simple_speed();
  speed.products["f32"] = {{10, 2e-6, 5e-6}, {100, 2e-3, 5e-3}};
  speed.random = {{1, 1e-6, 3e-6}, {1e6, 2e-2, 4e-3}};
  EXPECT_NEAR(pass_seconds(product(100, 100, 100), speed, Precision::kFull).backward, 5e-3, 1e-9);
  graph::OperatorWork mask;
  mask.kind = Kind::kRandom;
  mask.elements = 1e6;
  EXPECT_NEAR(pass_seconds(mask, speed, Precision::kFull).backward, 4e-3, 1e-9);
  // One point without is none.
  speed.random[0].backward_seconds = 0;
  EXPECT_NEAR(pass_seconds(mask, speed, Precision::kFull).backward, 1e-3, 1e-9);
}

TEST(DeviceSpeed, OperatorsAreLookedUpByNameAndVariant) {
  DeviceSpeed speed = simple_speed();
  speed.operators["softmax"] = {{1e6, 3e-3, 4e-3}};
  speed.operators["gelu.tanh"] = {{1e6, 7e-3, 8e-3}};
  EXPECT_NEAR(forward_of(function("aten::_softmax.int", 1e6), speed), 3e-3, 1e-9);
  EXPECT_NEAR(forward_of(function("aten::gelu.tanh", 1e6), speed), 7e-3, 1e-9);
  EXPECT_NEAR(forward_of(function("aten::gelu", 1e6), speed), 1e-2, 1e-9);
  speed.operators["view"] = {{1, 2e-7, 6e-7}};
  graph::OperatorWork view = function("aten::transpose.int", 1e6);
  view.kind = Kind::kView;
  EXPECT_NEAR(pass_seconds(view, speed, Precision::kFull).backward, 6e-7, 1e-12);
  for (const char* name : {"aten::unbind.int", "aten::split.Tensor", "aten::chunk"}) {
    view.name = name; // its gradients are put together again
    EXPECT_NEAR(pass_seconds(view, speed, Precision::kFull).backward, 1e-3 + 6e-7, 1e-9) << name;
  }
}

TEST(DeviceSpeed, ManySmallProductsHaveTheirOwnSeries) {
  DeviceSpeed speed = simple_speed();
  graph::OperatorWork many = product(10, 10, 10);
  many.count = 7;
  speed.batched_products["f32"] = {{10, 3e-6, 9e-6}};
  EXPECT_NEAR(forward_of(many, speed), 21e-6, 1e-12);
  EXPECT_NEAR(pass_seconds(many, speed, Precision::kFull).backward, 63e-6, 1e-12);
  EXPECT_NEAR(forward_of(product(10, 10, 10), speed), 2e-6, 1e-12);
}

TEST(DeviceSpeed, AProductOfNothingTakesNothing) {
  EXPECT_EQ(forward_of(product(0, 10, 10), simple_speed()), 0);
  EXPECT_EQ(pass_seconds(product(10, 0, 10), simple_speed(), Precision::kFull).backward, 0);
}

TEST(DeviceSpeed, WeightsComeFromMemory) {
  DeviceSpeed speed = simple_speed();
  const double near = forward_of(product(50, 200, 100), speed);
  speed.weights = {{1000, 1e-6, 2e-6}}; // a nanosecond an element
  const PassSeconds far = pass_seconds(product(50, 200, 100), speed, Precision::kFull);
  EXPECT_NEAR(far.forward - near, 20e-6, 1e-12);
  EXPECT_NEAR(far.backward - 2 * near, 40e-6, 1e-12);
}

TEST(DeviceSpeed, DataSheetsStandInForKnownDevices) {
  const DeviceSpeed speed = data_sheet_speed({.name = "A100"});
  ASSERT_TRUE(speed.measured());
  // 312 TFLOP/s at 0.75.
  EXPECT_NEAR(
      seconds_at(speed.products.at("bf16"), 8192, 3),
      2 * 8192.0 * 8192 * 8192 / (0.75 * 312e12),
      1e-6);
  EXPECT_FALSE(data_sheet_speed({.name = "cpu"}).measured());
}

// A device launches all products of one operator at once, and takes the rates that its file says.
TEST(DeviceSpeed, DataSheetsLaunchManyProductsOnce) {
  const auto forward = [](const DeviceSpeed& speed, double size, double count) {
    graph::OperatorWork work = product(size, size, size);
    work.count = count;
    return pass_seconds(work, speed, Precision::kHalf).forward;
  };
  const DeviceSpeed speed = data_sheet_speed({.name = "a100"});
  EXPECT_EQ(forward(speed, 32, 1), 10e-6);
  EXPECT_EQ(forward(speed, 32, 12), 10e-6);
  EXPECT_NEAR(forward(speed, 4096, 10), 20 * std::pow(4096.0, 3) / (0.75 * 312e12), 1e-9);
  const DeviceSpeed said =
      data_sheet_speed({.name = "a100", .memory_bytes_per_s = 1e11, .product_flops_per_s = 1e12});
  EXPECT_NEAR(seconds_at(said.products.at("bf16"), 8192, 3), 2 * std::pow(8192.0, 3) / 1e12, 1e-6);
  EXPECT_NEAR(seconds_at(said.moves, 1 << 26, 1), 12.0 * (1 << 26) / (0.75 * 1e11), 1e-9);
}

TEST(RuntimeConstants, MeasuredBandwidthsAreNotDiscounted) {
  Cluster cluster = small_cluster(1, 0);
  EXPECT_LT(runtime_constants(cluster, Precision::kFull).link_efficiency, 1);
  cluster.measured = true;
  cluster.nodes[0].latency_seconds = 3e-6;
  const Constants constants = runtime_constants(cluster, Precision::kHalf);
  EXPECT_EQ(constants.link_efficiency, 1);
  EXPECT_EQ(constants.link_latency_seconds, 3e-6);
  EXPECT_EQ(constants.gradient_wire_bytes, 2);
}

TEST(Cluster, MeasuredCollectivesReplaceTheRing) {
  Cluster cluster = small_cluster(1, 0);
  const DescribedModel model = small_model(2);
  const Strategy strategy = small_strategy(1, 2, 1, 1, 2);
  cluster.collectives = {{"all_reduce", 2, 1, 4e6, 0.1}, {"all_reduce", 2, 1, 16e6, 0.4}};
  // Two layers of a million parameters, 4 bytes each: 8 MB.
  EXPECT_NEAR(price(model, cluster, strategy, bare_constants()).gradient_seconds, 0.2, 1e-9);
  EXPECT_EQ(cluster.collective("all_reduce", 3, {.count = 1}, 1).seconds, 0);
  EXPECT_EQ(cluster.collective("all_reduce", 2, {.count = 2}, 1).seconds, 0);
}

TEST(Cluster, SharedCoresBoundTheEstimate) {
  Cluster cluster = small_cluster(1, 0);
  const DescribedModel model = small_model(2);
  const Strategy strategy = small_strategy(1, 2, 1, 1, 2);
  const double apart = price(model, cluster, strategy, bare_constants()).seconds;
  cluster.nodes[0].cores = 2;
  EXPECT_DOUBLE_EQ(price(model, cluster, strategy, bare_constants()).seconds, apart);
  cluster.nodes[0].cores = 1;
  const StrategyCost cost = price(model, cluster, strategy, bare_constants());
  // Eight microbatches of six milliseconds on each of two ranks.
  EXPECT_NEAR(cost.compute_seconds, 0.048, 1e-9);
  EXPECT_NEAR(cost.shared_cores_seconds, 0.048, 1e-9);
  EXPECT_NEAR(cost.seconds, apart + 0.048, 1e-9);
}

TEST(Cluster, LinksBoundFlowsBetweenNodes) {
  Cluster cluster = small_cluster(2, 0);
  EXPECT_EQ(cluster.between(0, 1), 1e9);
  cluster.links = {{.first = 1, .second = 0, .bytes_per_s = 2e8}};
  EXPECT_EQ(cluster.between(0, 1), 2e8);
  const Strategy strategy = small_strategy(4, 1, 1, 1, 4);
  EXPECT_EQ(place(strategy, cluster, bare_constants()).stages[1].next_bytes_per_s, 2e8);
}

} // namespace
} // namespace tessera::cost
