// The experiments of Li et al. 2022, section 4, against what the paper measured.
#include <algorithm>
#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/planner/amp_paper.h"
#include "tests/unit/accuracy/needs_amp_runs.h"

namespace tessera::bench {
namespace {

using planner::Method;

using AmpRuns = NeedsAmpRuns;
using AmpFigureTwo = NeedsAmpRuns;
using AmpFigureThree = NeedsAmpRuns;
using AmpTables = NeedsAmpRuns;

const auto kAll = [](const planner::PricedRow&) { return true; };

constexpr double kSimulatedSpearman = 0.958;

TEST_F(AmpRuns, TheHomogeneousRunsAreRankedTheFastestFirstAndFailedOnesRefused) {
  const planner::PricedTable table = amp_runs(AMP_RUNS);
  const planner::Judgement verdict = planner::judge(table, kAll);
  EXPECT_EQ(verdict.runs, 52);
  EXPECT_EQ(verdict.finished, 47);
  EXPECT_THAT(broken_amp_limits(table), testing::IsEmpty());
}

TEST_F(AmpRuns, AreRankedBetterThanByThePapersOwnEstimate) {
  const planner::PricedTable table = amp_runs(AMP_RUNS);
  std::vector<double> measured;
  std::vector<double> theirs;
  for (const planner::PricedRow& row : table.rows) {
    const double seconds = std::stod(table.cell(row, "measured_s"));
    if (!std::isinf(seconds)) {
      measured.push_back(seconds);
      theirs.push_back(std::stod(table.cell(row, "amp_predicted_s")));
    }
  }
  const double own = planner::spearman(measured, theirs);
  EXPECT_NEAR(own, 0.935, 0.0005);
  EXPECT_GT(planner::judge(table, kAll).spearman, own);
}

TEST_F(AmpFigureTwo, EstimateAndSimulationFollowTheMeasuredSeconds) {
  const std::vector<Series> series = amp_figure_two(AMP_RUNS);
  ASSERT_EQ(series[0].x.size(), 47u);
  EXPECT_GE(planner::spearman(series[0].x, series[0].y), kAmpSpearman);
  EXPECT_GE(planner::spearman(series[1].x, series[1].y), kSimulatedSpearman);
  for (std::size_t i = 0; i < series[0].x.size(); ++i) {
    EXPECT_NEAR(series[1].y[i] / series[0].y[i], 1, 0.11) << i; // two ways to one figure
  }
}

TEST_F(AmpFigureThree, TheBestLayersWinByMoreWhereTheModelIsLessEven) {
  const std::vector<Series> series = amp_figure_three(amp_setup(AMP_RUNS, "transgan", "p3"));
  for (const Series& one : series) {
    for (std::size_t i = 0; i < one.x.size(); ++i) {
      EXPECT_GE(one.y[i], 1) << one.name << " at " << one.x[i];
    }
  }
  const auto at = [&](std::size_t which, double share) {
    const auto found = std::find(series[which].x.begin(), series[which].x.end(), share);
    return series[which].y.at(static_cast<std::size_t>(found - series[which].x.begin()));
  };
  EXPECT_GT(at(0, 4), at(0, 2));
  EXPECT_GT(at(0, 2), at(0, 1));
  EXPECT_GT(at(0, 0.25), at(0, 0.5));
  EXPECT_GT(at(0, 0.5), at(0, 1));
  EXPECT_GT(at(1, 4), at(1, 2)); // narrow layers have hardly a parameter
  EXPECT_GT(at(1, 2), at(1, 1));
}

// What one method's least and mean seconds were in the paper, and how far off they may be.
struct Published {
  Method method;
  double least;
  double mean;
  double most_off; // of the least, as a factor
  double most_off_mean;
};

void expect_table(const AmpSetup& setup, const std::vector<Published>& table) {
  for (const Published& row : table) {
    const TopTen found = amp_top_ten(setup, row.method);
    const double factor = found.least / row.least;
    const double mean_factor = found.mean / row.mean;
    EXPECT_LT(std::max(factor, 1 / factor), row.most_off) << "least of " << row.least;
    EXPECT_LT(std::max(mean_factor, 1 / mean_factor), row.most_off_mean) << "mean " << row.mean;
  }
}

TEST_F(AmpTables, TheEvenClusterIsPredictedAsFarOffAsDocumented) {
  expect_table(
      amp_setup(AMP_RUNS, "gpt2", "homogeneous"),
      {{Method::kMegatron, 1.32, 2.41, 1.24, 1.20},
       {Method::kAmp, 1.20, 1.43, 1.35, 1.24},
       {Method::kAnnealing, 1.57, 1.82, 1.04, 1.05}});
}

TEST_F(AmpTables, TheUnevenClusterIsPredictedAsFarOffAsDocumented) {
  const AmpSetup setup = amp_setup(AMP_RUNS, "gpt2", "heterogeneous");
  expect_table(
      setup,
      {{Method::kMegatron, 1.97, 2.62, 1.67, 1.40},
       {Method::kRandom, 1.71, 3.04, 1.50, 1.30},
       {Method::kAmp, 1.28, 1.73, 1.14, 1.04},
       {Method::kAnnealing, 1.46, 2.29, 1.18, 1.43}});
  // The order of the methods is the paper's, but for annealing, which finds more here.
  const double amp = amp_top_ten(setup, Method::kAmp).least;
  const double random = amp_top_ten(setup, Method::kRandom).least;
  const double megatron = amp_top_ten(setup, Method::kMegatron).least;
  EXPECT_LT(amp, random);
  EXPECT_LT(random, megatron);
  EXPECT_GT(megatron / amp, 1.54); // what the paper measured; decision 110 says why it is more
}

TEST_F(AmpTables, TheColumnsOfTheUnevenModelAreWithinAnEighth) {
  const AmpSetup setup = amp_setup(AMP_RUNS, "transgan", "p3");
  const Assignments seconds = amp_assignments(setup);
  const double megatron = amp_top_ten(setup, Method::kMegatron).least;
  EXPECT_NEAR(megatron / 1.89, 1, 0.125);
  EXPECT_NEAR(seconds.by_parameters / 2.19, 1, 0.125);
  EXPECT_NEAR(seconds.even_layers / 1.25, 1, 0.125);
  EXPECT_NEAR(seconds.best / 1.07, 1, 0.125);
  EXPECT_LT(seconds.best, seconds.even_layers);
  EXPECT_LT(seconds.even_layers, megatron);
  EXPECT_LT(megatron, seconds.by_parameters);
  // The search may leave the strategy of the paper and finds a faster one by estimate.
  EXPECT_LE(amp_top_ten(setup, Method::kAmp).least, seconds.best);
}

} // namespace
} // namespace tessera::bench
