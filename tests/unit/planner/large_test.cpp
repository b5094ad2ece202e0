// The largest clusters that are promised: planned and simulated within the test's time limit.
#include <gtest/gtest.h>

#include "tessera/planner/search.h"
#include "tessera/simulator/simulate.h"

#include "tests/unit/cost/small_cases.h"

namespace tessera::planner {
namespace {

// Ten thousand devices in nodes of eight, of one kind or of two in turn.
cost::Cluster ten_thousand(int kinds) {
  cost::Cluster cluster = cost::small_cluster(1250, 0);
  for (std::size_t n = 0; n < cluster.nodes.size(); ++n) {
    cluster.nodes[n].count = 8;
    cluster.nodes[n].kind = static_cast<int>(n) % kinds;
  }
  return cluster;
}

class TenThousandDevices : public testing::TestWithParam<int> {};

TEST_P(TenThousandDevices, ArePlannedAndSimulated) {
  const cost::Cluster cluster = ten_thousand(GetParam());
  auto model = cost::small_model(200, 0.005, "transformer_layer");
  model.global_batch_size = 20'000; // which all degrees divide
  const SearchResult found = search(model, cluster, {});
  ASSERT_FALSE(found.best.empty());
  const Candidate& best = found.best.front();
  EXPECT_EQ(best.strategy.devices(), 10'000);
  EXPECT_GT(found.considered, 200);
  EXPECT_GT(found.lower_bound, 0);
  EXPECT_LE(found.lower_bound, best.cost.seconds);
  // No step is shorter than its work spread evenly over devices of the fastest kind.
  const cost::LayerTable table(model, cluster, best.strategy, {});
  const double work = table.compute_seconds(0, 0, 200) * best.strategy.tp * best.microbatches *
                      best.strategy.dp / 10'000;
  EXPECT_GE(best.cost.seconds, work);
  const auto run = simulator::simulate(model, cluster, best.strategy, {.keep_events = false});
  EXPECT_EQ(run.needed_bytes.size(), 10'000u);
  EXPECT_GE(run.iteration_seconds, work);
  EXPECT_NEAR(run.iteration_seconds / best.cost.seconds, 1, 0.5);
}

INSTANTIATE_TEST_SUITE_P(Kinds, TenThousandDevices, testing::Values(1, 2));

} // namespace
} // namespace tessera::planner
