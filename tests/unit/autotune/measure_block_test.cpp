#include "tessera/autotune/probe/measure_block.h"

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

} // namespace
} // namespace tessera::autotune
