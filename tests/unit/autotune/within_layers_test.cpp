#include "tessera/autotune/probe/within_layers.h"

#include <vector>

#include <gtest/gtest.h>

namespace tessera::autotune {
namespace {

using cost::MeasuredPoint;

// A pass whose operators ran at this pace.
LayerPass pass_at(LayerPass sums, double launch, double products, double others) {
  sums.products_took = products * sums.products;
  sums.whole_took = launch * sums.launch + products * sums.products + others * sums.others;
  return sums;
}

const LayerPass kLargeSums = {.launch = 2, .products = 100, .others = 20};
const LayerPass kSmallSums = {.launch = 2, .products = 0.5, .others = 0.25};

TEST(LayerPace, PutsWhatTwoSizesOfLayersTookOnTheirOperators) {
  const LayerPasses large = {pass_at(kLargeSums, 1.4, 1.02, 1.1), pass_at(kLargeSums, 1.2, 1.1, 1)};
  const LayerPasses small = {pass_at(kSmallSums, 1.4, 1.02, 1.1), pass_at(kSmallSums, 1.2, 1.1, 1)};
  const LayerPace pace = layer_pace(large, small);
  EXPECT_NEAR(pace.launch.forward, 1.4, 1e-9);
  EXPECT_NEAR(pace.products.forward, 1.02, 1e-9);
  EXPECT_NEAR(pace.others.forward, 1.1, 1e-9);
  EXPECT_NEAR(pace.launch.backward, 1.2, 1e-9);
  EXPECT_NEAR(pace.products.backward, 1.1, 1e-9);
  EXPECT_NEAR(pace.others.backward, 1, 1e-9);
}

TEST(LayerPace, IsTheLargeLayersWhereOnlyANegativeOneWouldDo) {
  LayerPass small = pass_at(kSmallSums, 1, 1, 1);
  small.whole_took = 100; // launching would have to take longer than the whole of the large layers
  const LayerPass large = pass_at(kLargeSums, 1.5, 1.5, 1.5);
  const LayerPace pace = layer_pace({large, large}, {small, small});
  EXPECT_NEAR(pace.launch.forward, 1.5, 1e-9);
  EXPECT_NEAR(pace.products.forward, 1.5, 1e-9);
  EXPECT_NEAR(pace.others.backward, 1.5, 1e-9);
}

TEST(LayerPace, IsTheLargeLayersWhereBothSizesSayTheSame) {
  const LayerPass large = pass_at(kLargeSums, 1.3, 1.1, 1.2);
  const LayerPace pace = layer_pace({large, large}, {large, large});
  EXPECT_NEAR(pace.launch.forward, large.whole_took / 122, 1e-9);
  EXPECT_NEAR(pace.others.forward, large.whole_took / 122, 1e-9);
}

TEST(LayerPace, LaunchingIsWhatTheSmallestOperatorTakes) {
  cost::DeviceSpeed speed;
  speed.products["f32"] = {{8, 1, 2}, {64, 5, 9}};
  speed.moves = {{16, 1, 3}, {1024, 11, 13}};
  speed.operators["view"] = {{1, 0.5, 0.25}};
  speed.weights = {{100, 4, 6}};
  scale(speed, {.launch = {2, 3}, .products = {10, 20}, .others = {100, 200}});
  const std::vector<MeasuredPoint>& products = speed.products["f32"];
  EXPECT_DOUBLE_EQ(products[0].seconds, 2);
  EXPECT_DOUBLE_EQ(products[0].backward_seconds, 6);
  EXPECT_DOUBLE_EQ(products[1].seconds, 2 + 40);
  EXPECT_DOUBLE_EQ(products[1].backward_seconds, 6 + 140);
  EXPECT_DOUBLE_EQ(speed.moves[1].seconds, 2 + 1000);
  EXPECT_DOUBLE_EQ(speed.moves[1].backward_seconds, 9 + 2000);
  EXPECT_DOUBLE_EQ(speed.operators["view"][0].seconds, 1);
  EXPECT_DOUBLE_EQ(speed.operators["view"][0].backward_seconds, 0.75);
  EXPECT_DOUBLE_EQ(speed.weights[0].seconds, 40);
  EXPECT_DOUBLE_EQ(speed.weights[0].backward_seconds, 120);
}

TEST(LayerPace, OfAllScalesEverySecond) {
  cost::DeviceSpeed speed;
  speed.products["f32"] = {{8, 1, 2}, {64, 5, 9}};
  speed.functions = {{16, 1, 3}, {1024, 11, 13}};
  speed.weights = {{100, 4, 6}};
  scale(speed, LayerPace::of_all({2, 3}));
  EXPECT_DOUBLE_EQ(speed.products["f32"][1].seconds, 10);
  EXPECT_DOUBLE_EQ(speed.products["f32"][1].backward_seconds, 27);
  EXPECT_DOUBLE_EQ(speed.functions[1].seconds, 22);
  EXPECT_DOUBLE_EQ(speed.weights[0].backward_seconds, 18);
}

TEST(TakeFromMemory, NoElementTakesLessThanOneOfTheLargestTensor) {
  cost::DeviceSpeed speed;
  // Tensors of 1000 elements were in a cache, the largest was not; a backward found none.
  speed.moves = {{10, 1, 1}, {1000, 1.5, 3}, {100000, 101, 101}};
  take_from_memory(speed);
  EXPECT_NEAR(speed.moves[0].seconds, 1.01, 1e-9);
  EXPECT_NEAR(speed.moves[1].seconds, 2, 1e-9);
  EXPECT_NEAR(speed.moves[1].backward_seconds, 3, 1e-9);
  EXPECT_NEAR(speed.moves[2].seconds, 101, 1e-9);
}

TEST(TakeFromMemory, LeavesProductsAndWhatWasNotMeasured) {
  cost::DeviceSpeed speed;
  speed.products["f32"] = {{8, 1, 1}, {64, 1.5, 1.5}, {512, 700, 700}};
  take_from_memory(speed);
  EXPECT_DOUBLE_EQ(speed.products["f32"][1].seconds, 1.5);
  EXPECT_TRUE(speed.moves.empty());
}

} // namespace
} // namespace tessera::autotune
