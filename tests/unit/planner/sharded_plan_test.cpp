// Plans that divide parameters and gradients among replicas, where the configuration allows it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/planner/nothing_fits.h"
#include "tessera/planner/search.h"
#include "tessera/planner/to_config.h"

#include "tests/unit/cost/small_cases.h"

namespace tessera::planner {
namespace {

using testing::HasSubstr;

// One layer for four devices, so that there is one stage, which fits only where its parameters are
// divided.
SearchResult searched(int nodes) {
  auto model = cost::small_model(1);
  model.layers[0].parameters = 400'000'000;
  auto cluster = cost::small_cluster(2, 0);
  cluster.nodes.resize(static_cast<std::size_t>(nodes));
  for (cost::Node& node : cluster.nodes) {
    node.count = 4 / nodes;
  }
  cluster.kinds[0].memory_bytes = 10e9;
  SearchOptions options;
  options.runnable_only = true;
  options.save_memory = true;
  options.tensor_degree = 1; // which would divide the parameters as well
  return search(model, cluster, options);
}

TEST(ShardedPlan, IsChosenAndWrittenWhereNothingElseFits) {
  const SearchResult found = searched(1);
  ASSERT_FALSE(found.best.empty());
  const Candidate& best = found.best.front();
  auto model = cost::small_model(1);
  EXPECT_TRUE(best.strategy.shard_parameters);
  EXPECT_EQ(not_runnable(best, model), std::nullopt);
  const config::Config config = to_config(best, model);
  EXPECT_EQ(config.sharded_data_parallel_degree, best.strategy.dp);
  EXPECT_GT(config.sharded_data_parallel_degree, 1);
  EXPECT_FALSE(config.shard_optimizer_state); // the degree includes it
  EXPECT_TRUE(config.ddp);
  EXPECT_THAT(to_config_json(best, model), HasSubstr("sharded_data_parallel_degree"));
}

// Plans that run are sharded on one node only.
TEST(ShardedPlan, IsNotChosenOverSeveralNodes) {
  EXPECT_THROW(searched(2), NothingFits);
}

// The planner says of every combination what the configuration's checks say of it.
TEST(ShardedPlan, TheConfigurationDecidesWithWhichDegrees) {
  for (const int pp : {1, 2}) {
    for (const int tp : {1, 2}) {
      for (const bool same_samples : {false, true}) {
        cost::Strategy strategy;
        strategy.pp = pp;
        strategy.tp = tp;
        strategy.dp = 2;
        strategy.same_samples = same_samples && tp > 1;
        strategy.shard_optimizer_state = true;
        strategy.shard_parameters = true;
        config::Config config;
        config.pipeline_parallel_degree = pp;
        config.tensor_parallel_degree = tp;
        config.prescaled_batch = strategy.same_samples;
        config.ddp = true;
        config.sharded_data_parallel_degree = 2;
        bool accepted = true;
        try {
          config::validate(config);
        } catch (const ConfigError&) {
          accepted = false;
        }
        EXPECT_EQ(!sharding_refusal(strategy), accepted) << pp << " " << tp << " " << same_samples;
      }
    }
  }
}

} // namespace
} // namespace tessera::planner
