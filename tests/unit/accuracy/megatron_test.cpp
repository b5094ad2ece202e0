// Runs of Megatron-LM, to which no figure was fitted: models of 1.7 to 1,008 billion parameters.
#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/statistics.h"

#include "bench/planner/megatron_runs.h"

namespace tessera::bench {
namespace {

TEST(MegatronRuns, ArePricedAsNearAsTheyAre) {
  const std::vector<MegatronRun> runs = megatron_runs(MEGATRON_RUNS);
  ASSERT_EQ(runs.size(), 14u);
  std::vector<double> ratios;
  for (const MegatronRun& run : runs) {
    const double ratio = run.priced / run.measured;
    ratios.push_back(ratio);
    // All of them ran, so all of them fit.
    EXPECT_GT(ratio, 0.95) << run.table << " " << run.model;
    EXPECT_LT(ratio, 1.25) << run.table << " " << run.model;
  }
  // What is wrong of all of them alike.
  EXPECT_NEAR(median(ratios), 1.125, 0.015);
}

} // namespace
} // namespace tessera::bench
