// The runs of Karakus et al. 2021, section 7, simulated with no figure fitted to them.
#include <gtest/gtest.h>

#include "bench/planner/smp_runs.h"

namespace tessera::bench {
namespace {

// Simulated over measured sequences a second, as reached and rounded to the safe side.
struct Limit {
  double least;
  double most;
};

TEST(SmpRuns, ThroughputsStayAsFarFromThePaperAsTheyAre) {
  const std::vector<SmpRun> runs = smp_runs();
  const std::vector<Limit> limits = {{1.55, 1.7}, {0.82, 0.89}, {1.12, 1.21}};
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const SmpResult result = simulate_smp(SMP_RUNS, runs[i]);
    const double ratio = result.simulated / runs[i].measured;
    EXPECT_GT(ratio, limits[i].least) << runs[i].model;
    EXPECT_LT(ratio, limits[i].most) << runs[i].model;
    // Estimate and simulation are two ways to one figure.
    EXPECT_NEAR(result.simulated / result.priced, 1, 0.1) << runs[i].model;
  }
}

} // namespace
} // namespace tessera::bench
