#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bench/planner/frozen_constants.h"

namespace tessera::bench {
namespace {

TEST(Accuracy, PublishedRunsArePricedAsWellAsWhenTheLimitsWereSet) {
  const std::vector<PublishedRuns> all = published_runs(PUBLISHED_RUNS, {});
  std::size_t runs = 0;
  for (const PublishedRuns& one : all) {
    runs += one.table.rows.size();
  }
  EXPECT_EQ(runs, 1621u + 209u); // twenty contradict themselves, seven are in 8 bits
  EXPECT_THAT(broken_limits(all, accuracy_limits()), testing::IsEmpty());
}

// Whose rates are those of single kernels: no run of a model had a part in any figure.
TEST(Accuracy, RunsOnOneDeviceArePricedAsWellAsWhenTheLimitsWereSet) {
  const std::vector<PublishedRuns> all = published_runs(ONE_DEVICE_RUNS, {});
  std::size_t runs = 0;
  for (const PublishedRuns& one : all) {
    runs += one.table.rows.size();
  }
  EXPECT_EQ(runs, 96u); // six models, two devices
  EXPECT_THAT(broken_limits(all, one_device_limits()), testing::IsEmpty());
}

void expect_runs_of(
    const std::vector<AccuracyLimits>& limits,
    const std::vector<PublishedRuns>& all) {
  for (const AccuracyLimits& limit : limits) {
    bool found = false;
    for (const PublishedRuns& one : all) {
      found |=
          one.name == limit.runs && (limit.nodes == 0 || one.node_counts().count(limit.nodes) != 0);
    }
    EXPECT_TRUE(found) << limit.runs << " on " << limit.nodes;
  }
}

TEST(Accuracy, EveryLimitIsOfRunsThatAreThere) {
  expect_runs_of(accuracy_limits(), published_runs(PUBLISHED_RUNS, {}));
  expect_runs_of(one_device_limits(), published_runs(ONE_DEVICE_RUNS, {}));
}

// A limit that no constant moves holds nothing; a constant that moves no limit is not known.
TEST(Accuracy, EveryConstantBreaksALimitWhenItChangesByAQuarter) {
  const AccuracyRuns runs = {
      .published = PUBLISHED_RUNS, .smp = SMP_RUNS, .megatron = MEGATRON_RUNS, .amp = AMP_RUNS};
  const FrozenConstant none = {"none", [](cost::Constants&, cost::Cluster&, double) {}};
  EXPECT_THAT(broken_by(none, 1, runs), testing::IsEmpty());
  for (const FrozenConstant& constant : frozen_constants()) {
    if (constant.only_amp && runs.amp.empty()) {
      continue;
    }
    for (const double factor : {constant.less, constant.more}) {
      EXPECT_THAT(broken_by(constant, factor, runs), testing::Not(testing::IsEmpty()))
          << constant.name << " times " << factor;
    }
  }
}

} // namespace
} // namespace tessera::bench
