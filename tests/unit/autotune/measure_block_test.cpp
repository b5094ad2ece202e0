#include "tessera/autotune/probe/measure_block.h"

#include <vector>

#include <gtest/gtest.h>

namespace tessera::autotune {
namespace {

using Passes = BlockTimes::Passes;

// A device whose operators take about what those of a processor do.
cost::DeviceSpeed simple_speed() {
  const std::vector<cost::MeasuredPoint> points = {{1, 1e-6, 2e-6}, {1 << 20, 1e-3, 2e-3}};
  cost::DeviceSpeed speed;
  speed.products["f32"] = {{8, 1e-6, 2e-6}, {512, 5e-3, 10e-3}};
  speed.moves = speed.functions = speed.random = points;
  speed.operators["layer_norm"] = points;
  return speed;
}

void expect_same(const cost::PassSeconds& a, const cost::PassSeconds& b) {
  EXPECT_DOUBLE_EQ(a.forward, b.forward);
  EXPECT_DOUBLE_EQ(a.backward, b.backward);
}

TEST(BlockTimes, MeasuresProductsAndWholeLayers) {
  BlockTimes blocks(0);
  for (int round = 0; round < 4; ++round) {
    blocks.once();
  }
  const LayerPace pace = blocks.pace(simple_speed());
  for (const cost::PassSeconds& one : {pace.launch, pace.products, pace.others}) {
    EXPECT_GT(one.forward, 0);
    EXPECT_GT(one.backward, 0);
  }
}

// Operators that take half as long alone take twice as many times that within the same layers.
TEST(BlockTimes, OperatorsOfHalfTheSecondsHaveTwiceThePace) {
  BlockTimes blocks(0);
  blocks.add({{1, 2}, {0.75, 1.5}}, {{1e-3, 2e-3}, {1e-4, 2e-4}});
  const LayerPace pace = blocks.pace(simple_speed());
  cost::DeviceSpeed faster = simple_speed();
  scale(faster, LayerPace::of_all({0.5, 0.5}));
  const LayerPace of_faster = blocks.pace(faster);
  EXPECT_NEAR(of_faster.launch.forward, 2 * pace.launch.forward, 1e-9);
  EXPECT_NEAR(of_faster.products.forward, 2 * pace.products.forward, 1e-9);
  EXPECT_NEAR(of_faster.others.backward, 2 * pace.others.backward, 1e-9);
}

// The best pass met nothing, and the first one allocates: neither is what a training step takes.
TEST(BlockTimes, TheMiddleOfAllPassesCounts) {
  const auto pace = [](const std::vector<Passes>& all) {
    BlockTimes blocks(0);
    for (const Passes& one : all) {
      blocks.add(one, {{1e-3, 2e-3}, {1e-4, 2e-4}});
    }
    return blocks.pace(simple_speed());
  };
  const LayerPace middle = pace({{{3, 5}, {2, 3}}});
  const LayerPace found = pace(
      {{{1000, 2}, {900, 1}},
       {{2, 1000}, {1, 900}},
       {{3, 5}, {2, 3}},
       {{2.5, 4}, {1.5, 2}},
       {{40, 60}, {30, 50}}});
  expect_same(found.launch, middle.launch);
  expect_same(found.products, middle.products);
  expect_same(found.others, middle.others);
}

} // namespace
} // namespace tessera::autotune
