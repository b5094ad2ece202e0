// Runs of Megatron-LM, to which no figure was fitted: models of 1.7 to 1,008 billion parameters.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/planner/megatron_runs.h"

namespace tessera::bench {
namespace {

TEST(MegatronRuns, ArePricedAsNearAsTheyAre) {
  EXPECT_EQ(megatron_runs(MEGATRON_RUNS).size(), 14u);
  EXPECT_THAT(broken_megatron_limits(MEGATRON_RUNS), testing::IsEmpty());
}

} // namespace
} // namespace tessera::bench
