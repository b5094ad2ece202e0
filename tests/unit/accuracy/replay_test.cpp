// Published runs of Llama-style models, executed by the simulator: seconds beside the estimate and
// memory beside what the runs report.
#include <algorithm>
#include <cmath>

#include <gtest/gtest.h>

#include "tessera/planner/rank_correlation.h"
#include "tessera/simulator/simulate.h"

#include "bench/planner/published_runs.h"
#include "bench/planner/row_strategy.h"

namespace tessera::bench {
namespace {

constexpr int kEvery = 12; // of the finished runs of more than one stage

TEST(Replays, PipelinesOnUpToFiveHundredDevicesFollowEstimateAndReportedMemory) {
  const std::string folder = PUBLISHED_RUNS;
  const cost::Cluster cluster = planner::load_cluster(folder + "/cluster_h100_efa.json");
  std::vector<double> memory_errors;
  std::vector<double> measured;
  std::vector<double> simulated;
  int seen = 0;
  for (const PublishedRuns& runs : published_runs(folder, {})) {
    if (!runs.name.starts_with("llama_")) {
      continue;
    }
    const auto model = planner::load_model(folder + "/model_" + runs.name + ".json");
    for (const planner::PricedRow& row : runs.table.rows) {
      const double took = std::stod(runs.table.cell(row, "measured_s"));
      const std::string gib = runs.table.cell(row, "measured_gib");
      if (!row.runs || std::isinf(took) || gib.empty() || row.cost.stages.size() == 1 ||
          seen++ % kEvery != 0) {
        continue;
      }
      simulator::SimulationOptions options;
      options.keep_events = false;
      const simulator::SimulationResult result = simulator::simulate(
          model,
          cluster.first_nodes(runs.nodes(row)),
          strategy_of(runs.table, row, model),
          options);
      measured.push_back(took);
      simulated.push_back(result.iteration_seconds);
      // A fixed order of forwards and backwards waits for sends, which the estimate hides; stalls
      // and the messages of reductions have a price and are no events.
      EXPECT_LT(result.iteration_seconds / row.cost.seconds, 1.5) << seen;
      EXPECT_NEAR(result.memory_high_water[0] / row.cost.stages[0].memory.total(), 1, 1e-9) << seen;
      memory_errors.push_back(
          std::abs(result.memory_high_water[0] / (1 << 30) / std::stod(gib) - 1));
    }
  }
  EXPECT_GE(measured.size(), 50u);
  std::sort(memory_errors.begin(), memory_errors.end());
  EXPECT_LT(memory_errors[memory_errors.size() / 2], 0.10);
  EXPECT_GT(planner::spearman(measured, simulated), 0.64);
}

} // namespace
} // namespace tessera::bench
