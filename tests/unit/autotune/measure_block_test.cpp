#include "tessera/autotune/probe/measure_block.h"

#include <vector>

#include <gtest/gtest.h>

#include "tessera/autotune/probe/probe.h"

namespace tessera::autotune {
namespace {

// A device with products so slow that they decide.
cost::DeviceSpeed simple_speed() {
  const std::vector<cost::MeasuredPoint> points = {{1, 1e-6, 2e-6}, {1 << 20, 1e-3, 2e-3}};
  cost::DeviceSpeed speed;
  speed.products["f32"] = {{8, 1e-6, 2e-6}, {512, 5, 10}};
  speed.moves = speed.functions = speed.random = points;
  speed.operators["layer_norm"] = points;
  return speed;
}

TEST(BlockTimes, AFactorBringsTheSumOfOperatorsToTheWhole) {
  BlockTimes blocks(0);
  for (int round = 0; round < 4; ++round) {
    blocks.once();
  }
  cost::DeviceSpeed speed = simple_speed();
  const cost::PassSeconds longer = blocks.longer_than(speed);
  EXPECT_GT(longer.forward, 0);
  EXPECT_GT(longer.backward, 0);
  EXPECT_LT(longer.forward, 0.5);
  EXPECT_LT(longer.backward, 0.5);
  scale(speed, longer);
  const cost::PassSeconds scaled = blocks.longer_than(speed);
  EXPECT_NEAR(scaled.forward, 1, 1e-6);
  EXPECT_NEAR(scaled.backward, 1, 0.1); // some of a backward goes by the seconds of forwards
}

// The best pass met nothing, and the first one allocates: neither is what a training step takes.
TEST(BlockTimes, TheMiddleOfAllPassesCounts) {
  const auto longer = [](const std::vector<cost::PassSeconds>& passes) {
    BlockTimes blocks(0);
    for (const cost::PassSeconds& one : passes) {
      blocks.add(one);
    }
    return blocks.longer_than(simple_speed());
  };
  const cost::PassSeconds middle = longer({{3, 5}});
  const cost::PassSeconds found = longer({{1000, 2}, {2, 1000}, {3, 5}, {2.5, 4}, {40, 60}});
  EXPECT_DOUBLE_EQ(found.forward, middle.forward);
  EXPECT_DOUBLE_EQ(found.backward, middle.backward);
}

} // namespace
} // namespace tessera::autotune
