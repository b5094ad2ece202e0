#include "tessera/planner/search.h"

#include <atomic>
#include <chrono>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/config/config.h"
#include "tessera/planner/decision.h"
#include "tessera/planner/explain.h"
#include "tessera/planner/nothing_fits.h"
#include "tessera/planner/pricer.h"
#include "tessera/planner/space.h"

#include "tests/unit/cost/small_cases.h"

namespace tessera::planner {
namespace {

using cost::small_cluster;
using cost::small_model;
using testing::HasSubstr;
using testing::Not;

SearchOptions with_method(Method method) {
  SearchOptions options;
  options.method = method;
  return options;
}

TEST(Search, FindsTheBestOfEverythingItCanEnumerate) {
  const auto model = small_model(5, 0.5);
  const auto cluster = small_cluster(1, 1);
  const SearchOptions options;
  const auto result = search(model, cluster, options);
  ASSERT_FALSE(result.best.empty());
  const Pricer pricer(model, cluster, options);
  double least = 1e9;
  for (const Point& point : points_of(model, cluster, options)) {
    for (const Layout& layout : layouts_of(model, cluster, point, options)) {
      auto strategy = pricer.strategy(point);
      strategy.placement = layout.letters;
      strategy.device_of_rank =
          cost::lay_out(strategy, layout.letters, devices_in_order(cluster, layout.node_order));
      const auto one = pricer.assigned(strategy, pricer.table(point));
      least = std::min(least, one ? one->cost.seconds : least);
    }
  }
  EXPECT_DOUBLE_EQ(result.best.front().cost.seconds, least);
  for (std::size_t i = 1; i < result.best.size(); ++i) {
    EXPECT_LE(result.best[i - 1].cost.seconds, result.best[i].cost.seconds);
  }
}

TEST(Search, MethodsKeepTheirOrder) {
  const auto model = small_model(8, 1.0);
  const auto cluster = small_cluster(2, 2);
  const auto best = [&](Method method) {
    return search(model, cluster, with_method(method)).best.front().cost.seconds;
  };
  EXPECT_LE(best(Method::kAnnealing), best(Method::kAmp));
  EXPECT_LE(best(Method::kAmp), best(Method::kMegatron));
  EXPECT_LE(best(Method::kAmp), best(Method::kRandom));
}

TEST(Search, TheSameSeedGivesTheSameAnswer) {
  const auto model = small_model(8, 1.0);
  const auto cluster = small_cluster(2, 2);
  for (const Method method : {Method::kAmp, Method::kAnnealing, Method::kRandom}) {
    const auto a = search(model, cluster, with_method(method));
    const auto b = search(model, cluster, with_method(method));
    ASSERT_EQ(a.best.size(), b.best.size());
    for (std::size_t i = 0; i < a.best.size(); ++i) {
      EXPECT_EQ(a.best[i].cost.seconds, b.best[i].cost.seconds) << static_cast<int>(method);
      EXPECT_EQ(a.best[i].strategy.device_of_rank, b.best[i].strategy.device_of_rank);
    }
  }
}

TEST(Search, PlacementsAreBijections) {
  const auto model = small_model(8, 1.0);
  const auto cluster = small_cluster(2, 2);
  for (const Method method :
       {Method::kAmp, Method::kAnnealing, Method::kMegatron, Method::kRandom}) {
    for (const auto& one : search(model, cluster, with_method(method)).best) {
      const auto& devices = one.strategy.device_of_rank;
      const std::set<int> distinct(devices.begin(), devices.end());
      EXPECT_EQ(distinct.size(), 8u) << static_cast<int>(method);
      EXPECT_EQ(*distinct.rbegin(), 7) << static_cast<int>(method);
    }
  }
}

TEST(Search, NodesStayInTheFilesOrderWhereAsked) {
  const auto model = small_model(6, 0.5);
  const auto cluster = small_cluster(1, 1);
  const auto orders_of = [&](bool keep) {
    SearchOptions options;
    options.keep_node_order = keep;
    std::set<std::vector<int>> orders;
    for (const Point& point : points_of(model, cluster, options)) {
      for (const Layout& layout : layouts_of(model, cluster, point, options)) {
        orders.insert(layout.node_order);
      }
    }
    return orders;
  };
  EXPECT_EQ(orders_of(true), (std::set<std::vector<int>>{{0, 1}}));
  EXPECT_EQ(orders_of(false).count({1, 0}), 1u);
}

TEST(Search, RanksThatShareCoresGetLess) {
  const auto model = small_model(8);
  auto cluster = small_cluster(2, 0);
  cluster.nodes[1].count = 1;
  const auto layers_of_first_host = [&] {
    SearchOptions options;
    options.keep_node_order = true;
    const Pricer pricer(model, cluster, options);
    Point point;
    point.pp = 3;
    auto strategy = pricer.strategy(point);
    strategy.device_of_rank = {0, 1, 2};
    const auto one = pricer.assigned(strategy, pricer.table(point));
    return one.value().strategy.boundaries.at(2);
  };
  EXPECT_GE(layers_of_first_host(), 5); // 3, 3, 2 or 3, 2, 3
  cluster.nodes[0].cores = 1;
  EXPECT_EQ(layers_of_first_host(), 4); // half of all for each host's core
}

TEST(Search, SmallClustersAreSearchedAtOnce) {
  auto model = small_model(56, 0.1, "transformer_layer");
  model.global_batch_size = 64;
  auto cluster = small_cluster(2, 2);
  for (auto& node : cluster.nodes) {
    node.count = 4;
  }
  const auto start = std::chrono::steady_clock::now();
  EXPECT_FALSE(search(model, cluster, {}).best.empty());
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_LT(took.count(), 1); // 0.2 s when nothing else runs
}

TEST(Search, AnInterruptionKeepsTheBestSoFar) {
  const auto model = small_model(8);
  const auto cluster = small_cluster(2, 2);
  std::atomic<bool> stop{false};
  SearchOptions options;
  options.stop = &stop;
  options.progress = [&stop](const SearchProgress& progress) {
    stop = progress.done == 3;
    EXPECT_GT(progress.total, 3);
  };
  const auto result = search(model, cluster, options);
  EXPECT_TRUE(result.interrupted);
  EXPECT_EQ(result.considered, 3);
  EXPECT_FALSE(result.best.empty());
}

TEST(Search, AnInterruptedRandomSearchSaysSo) {
  const std::atomic<bool> stop{true};
  for (const Method method : {Method::kRandom, Method::kMegatron}) {
    SearchOptions options = with_method(method);
    options.stop = &stop;
    const auto result = search(small_model(8), small_cluster(2, 2), options);
    EXPECT_TRUE(result.interrupted) << static_cast<int>(method);
    EXPECT_EQ(result.considered, 0) << static_cast<int>(method);
  }
  EXPECT_FALSE(
      search(small_model(8), small_cluster(2, 2), with_method(Method::kRandom)).interrupted);
}

// A method that draws few strategies may miss those that fit.
TEST(Search, WhatAnotherMethodFindsIsNamed) {
  auto model = small_model(8);
  for (auto& layer : model.layers) {
    layer.parameters = 1'000'000;
  }
  model.layers[0].parameters = 450'000'000; // fits alone, or divided
  SearchOptions options = with_method(Method::kRandom);
  options.samples = 1;
  bool refused = false;
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    options.seed = seed;
    try {
      search(model, small_cluster(2, 0), options);
    } catch (const NothingFits& error) {
      refused = true;
      EXPECT_THAT(
          error.what(),
          AllOf(
              HasSubstr("no strategy that the method \"random\" tried fits"),
              HasSubstr("\"amp\" finds one"),
              Not(HasSubstr("sharding")),
              Not(HasSubstr(" -"))));
      EXPECT_TRUE(error.remedies().empty());
    }
  }
  EXPECT_TRUE(refused);
}

TEST(Search, WhatFitsNowhereIsExplained) {
  auto model = small_model(4);
  model.activation_checkpointing = false;
  for (auto& layer : model.layers) {
    layer.parameters = 250'000'000;
  }
  const auto message = [&](std::int64_t parameters) -> std::string {
    for (auto& layer : model.layers) {
      layer.parameters = parameters;
    }
    try {
      search(model, small_cluster(2, 0), {});
    } catch (const PlanError& error) {
      return error.what();
    }
    return "accepted";
  };
  // 28 bytes a parameter do not fit 12.8 GB; 22 with a sharded state may.
  EXPECT_EQ(message(300'000'000), "accepted");
  EXPECT_THAT(
      message(2'000'000'000),
      AllOf(HasSubstr("GiB more than a device has"), HasSubstr("add devices")));
}

TEST(Search, ShardingIsNamedWhereItHelps) {
  auto model = small_model(1);
  for (auto& [device, seconds] : model.measured().layers[0].forward_seconds_per_sample) {
    seconds.erase(2); // no tensor parallelism
  }
  model.layers[0].parameters = 430'000'000; // 13 GB, sharded 8 GB
  try {
    SearchOptions options;
    options.runnable_only = true;
    search(model, small_cluster(2, 0), options);
    FAIL();
  } catch (const NothingFits& error) {
    EXPECT_THAT(error.what(), HasSubstr("it fits with optimizer sharding"));
    EXPECT_EQ(error.remedies(), std::vector<Remedy>{Remedy::kOptimizerSharding});
  }
}

TEST(Search, UnknownDevicesAreNamed) {
  const auto model = small_model(4);
  auto cluster = small_cluster(1, 0);
  cluster.kinds.push_back({.name = "other", .memory_bytes = 1e9});
  EXPECT_THROW(search(model, cluster, {}), ConfigError);
}

TEST(Decision, IsAcceptedByTheConfiguration) {
  const auto model = small_model(4);
  const auto cluster = small_cluster(1, 0);
  SearchOptions options;
  options.runnable_only = true;
  for (const auto& one : search(model, cluster, options).best) {
    ASSERT_FALSE(not_runnable(one, model));
    const auto config = config::parse_config(to_config_json(one, model), "planned");
    EXPECT_EQ(config.pipeline_parallel_degree, one.strategy.pp);
    EXPECT_FALSE(config.auto_partition);
    EXPECT_EQ(config.partition.at("layer.3"), one.strategy.pp - 1);
    config::check_world(config, 2);
    plans::validate(to_plan(one, model));
  }
}

TEST(Decision, LayersThatShareParametersStayTogether) {
  auto model = small_model(4);
  model.layers[3].shares_parameters_with = "layer.0";
  SearchOptions options;
  options.runnable_only = true;
  const auto result = search(model, small_cluster(2, 0), options);
  for (const auto& one : result.best) {
    EXPECT_EQ(one.strategy.pp, 1);
  }
  options.runnable_only = false;
  options.keep = 100;
  bool apart = false;
  for (const auto& one : search(model, small_cluster(2, 0), options).best) {
    apart = apart || one.strategy.pp > 1;
  }
  EXPECT_TRUE(apart);
}

TEST(Decision, WhatTheRuntimeLacksIsSaid) {
  const auto model = small_model(4);
  const auto result = search(model, small_cluster(1, 0), {});
  const auto& candidate = result.best.front();
  ASSERT_TRUE(not_runnable(candidate, model)); // recomputes activations
  EXPECT_THROW(to_config_json(candidate, model), PlanError);
}

TEST(Explain, LongRowsAreWhole) {
  const auto model = small_model(1);
  const auto cluster = small_cluster(150, 0);
  Candidate candidate;
  candidate.strategy = cost::small_strategy(1, 300, 1, 1, 1);
  candidate.cost.stages.resize(1);
  EXPECT_THAT(explain(candidate, model, cluster), HasSubstr(",148,149\n"));
}

TEST(Explain, ShowsTheParts) {
  const auto model = small_model(4);
  const auto cluster = small_cluster(1, 0);
  const auto result = search(model, cluster, {});
  const std::string text = explain(result.best.front(), model, cluster);
  for (const char* part : {"computation", "bubble", "gradients", "optimizer", "needs"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(summary(result), HasSubstr("pp "));
}

} // namespace
} // namespace tessera::planner
