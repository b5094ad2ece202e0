// How much of the reduction of gradients is left after the last backward: by hand, and beside an
// execution of the buckets one after the other.
#include "tessera/cost/gradient_overlap.h"

#include <algorithm>
#include <random>

#include <gtest/gtest.h>

#include "tessera/cost/links.h"
#include "tessera/cost/strategy_cost.h"

#include "tests/unit/cost/small_cases.h"

namespace tessera::cost {
namespace {

double gradients(const DescribedModel& model, const Strategy& strategy, double bucket_bytes) {
  Constants constants = bare_constants();
  constants.gradient_bucket_bytes = bucket_bytes;
  return price(model, small_cluster(2, 0), strategy, constants).gradient_seconds;
}

TEST(GradientOverlap, AllButTheLastBucketHidesBehindTheLastBackward) {
  const DescribedModel model = small_model(2); // 8 MB of gradients, backwards of 4 ms
  Strategy strategy = small_strategy(1, 4, 1, 1, 2);
  const double whole = gradients(model, strategy, 2e6);
  EXPECT_NEAR(whole, 2 * 3.0 / 4 * 8e6 / 1e9, 1e-12);
  strategy.overlap_gradients = true;
  // The first of four buckets leaves at a quarter of the backward.
  EXPECT_NEAR(gradients(model, strategy, 2e6), whole - 0.75 * 4e-3, 1e-12);
  EXPECT_NEAR(gradients(model, strategy, 4e6), whole - 0.5 * 4e-3, 1e-12);
  // What fits into one bucket leaves when everything is done.
  EXPECT_NEAR(gradients(model, strategy, 25e6), whole, 1e-12);
}

TEST(GradientOverlap, TheLastBucketIsNeverHidden) {
  DescribedModel model = small_model(2);
  for (auto& [device, seconds] : model.measured().layers[0].forward_seconds_per_sample) {
    seconds[1] = 10;
  }
  Strategy strategy = small_strategy(1, 4, 1, 1, 2);
  const double whole = gradients(model, strategy, 2e6);
  strategy.overlap_gradients = true;
  EXPECT_NEAR(gradients(model, strategy, 2e6), whole / 4, 1e-12);
}

TEST(GradientOverlap, LaterStagesHideBehindTheStagesInFront) {
  DescribedModel model = small_model(2);
  model.layers[0].parameters = 0; // all gradients are the second stage's
  Strategy strategy = small_strategy(2, 2, 1, 1, 2, "DPT");
  const double whole = gradients(model, strategy, 25e6);
  EXPECT_NEAR(whole, 4e6 / 1e9, 1e-12);
  strategy.overlap_gradients = true;
  EXPECT_NEAR(gradients(model, strategy, 25e6), whole - 2e-3, 1e-12);
}

TEST(GradientOverlap, ExchangesOfSharedParametersWait) {
  DescribedModel model = small_model(4);
  model.layers[3].parameters = 0;
  model.layers[3].shares_parameters_with = "layer.0";
  Strategy strategy = small_strategy(2, 1, 1, 1, 4);
  const Cluster cluster = small_cluster(1, 0);
  const double alone = price(model, cluster, strategy, bare_constants()).gradient_seconds;
  EXPECT_GT(alone, 0);
  strategy.overlap_gradients = true;
  EXPECT_NEAR(price(model, cluster, strategy, bare_constants()).gradient_seconds, alone, 1e-12);
}

// Hands the buckets of all stages to one link in the order in which they become full, and returns
// how long the link works on after the last backward.
double executed(const GradientLoad& load, double seconds_of_a_byte, const Constants& constants) {
  struct Bucket {
    double full = 0;
    double bytes = 0;
  };
  std::vector<Bucket> buckets;
  double end = 0;
  for (const double seconds : load.backward_seconds) {
    end += seconds;
  }
  double begin = 0; // of the stage's last backward; the last stage is the first to run it
  for (std::size_t k = load.parameters.size(); k-- > 0;) {
    const double bytes = load.parameters[k] * constants.gradient_wire_bytes;
    const double count = std::max(1.0, std::ceil(bytes / constants.gradient_bucket_bytes));
    for (int i = 1; i <= static_cast<int>(count); ++i) {
      buckets.push_back({begin + load.backward_seconds[k] * i / count, bytes / count});
    }
    begin += load.backward_seconds[k];
  }
  double now = 0;
  for (const Bucket& bucket : buckets) {
    now = std::max(now, bucket.full) + bucket.bytes * seconds_of_a_byte;
  }
  return std::max(0.0, now - end);
}

TEST(GradientOverlap, IsWhatAnExecutionOfTheBucketsTakes) {
  std::mt19937_64 random(3);
  const auto draw = [&random](double most) {
    return most * static_cast<double>(random() >> 11) * 0x1.0p-53;
  };
  Constants constants = bare_constants();
  constants.gradient_bucket_bytes = 4e6;
  int hidden_in_part = 0;
  for (int i = 0; i < 500; ++i) {
    const int pp = 1 << random() % 3;
    // One ring a stage over both nodes, so all of them share the two networks.
    Cluster cluster = small_cluster(2, 0);
    for (Node& node : cluster.nodes) {
      node.count = pp;
    }
    const Strategy strategy = small_strategy(pp, 2, 1, 1, pp, "DPT");
    GradientLoad load;
    for (int k = 0; k < pp; ++k) {
      load.parameters.push_back(draw(1e7));
      load.backward_seconds.push_back(draw(40e-3));
    }
    load.whole.assign(load.parameters.size(), 0);
    load.tied = load.whole;
    const double found = exposed_gradient_seconds(strategy, cluster, load, constants);
    EXPECT_NEAR(found, executed(load, 1 / 1e9, constants), 1e-12) << i;
    const double all =
        gradient_sync_seconds(strategy, cluster, load.parameters, load.whole, load.tied, constants);
    hidden_in_part += found > 1e-6 && found < all - 1e-6 ? 1 : 0;
  }
  EXPECT_GT(hidden_in_part, 200);
}

TEST(GradientOverlap, UpdatedParametersOfADividedStateReturnBehindTheStep) {
  DescribedModel model = small_model(1);
  model.layers[0].parameters = 20'000'000;
  Strategy strategy = small_strategy(1, 2, 1, 1, 1);
  Cluster cluster = small_cluster(2, 0);
  cluster.nodes[0].count = cluster.nodes[1].count = 1;
  Constants constants = bare_constants();
  const double all = price(model, cluster, strategy, constants).gradient_seconds;
  strategy.overlap_gradients = true;
  constants.gradient_bucket_bytes = 1e12; // one bucket, which hides nothing
  EXPECT_NEAR(price(model, cluster, strategy, constants).gradient_seconds, all, 1e-12);
  strategy.shard_optimizer_state = true;
  EXPECT_NEAR(price(model, cluster, strategy, constants).gradient_seconds, all, 1e-12);
  // With links that are fast enough for all but the last of many buckets half of it is left.
  constants.gradient_bucket_bytes = 1e4;
  model.measured().layers[0].forward_seconds_per_sample["fast"][1] = 10;
  EXPECT_NEAR(price(model, cluster, strategy, constants).gradient_seconds, all / 2, 1e-3 * all);
}

TEST(GradientOverlap, RanksThatShareCoresHaveNoneForReductions) {
  Cluster cluster = small_cluster(2, 0);
  EXPECT_TRUE(reduces_beside_backwards(cluster));
  cluster.nodes[1].cores = 2;
  EXPECT_FALSE(reduces_beside_backwards(cluster));
  cluster.nodes[1].count = 1;
  EXPECT_TRUE(reduces_beside_backwards(cluster));
}

} // namespace
} // namespace tessera::cost
