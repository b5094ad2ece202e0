#include "tessera/planner/search.h"

#include <atomic>
#include <chrono>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/config/config.h"
#include "tessera/planner/candidate_text.h"
#include "tessera/planner/nothing_fits.h"
#include "tessera/planner/pricer.h"
#include "tessera/planner/space.h"
#include "tessera/planner/to_config.h"
#include "tessera/simulator/simulate.h"

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

// All boundaries of `stages` stages over `layers` layers, each at least one layer long.
std::vector<std::vector<int>> all_boundaries(int layers, int stages) {
  std::vector<std::vector<int>> result = {{0}};
  for (int k = 1; k < stages; ++k) {
    std::vector<std::vector<int>> longer;
    for (const std::vector<int>& cuts : result) {
      for (int cut = cuts.back() + 1; cut <= layers - (stages - k); ++cut) {
        longer.push_back(cuts);
        longer.back().push_back(cut);
      }
    }
    result = std::move(longer);
  }
  for (std::vector<int>& cuts : result) {
    cuts.push_back(layers);
  }
  return result;
}

// Everything is written out here, so that neither the space nor the assignment is its own oracle.
TEST(Search, FindsTheBestOfAllStrategies) {
  const auto model = small_model(5, 0.5);
  const auto cluster = small_cluster(1, 1);
  SearchOptions options;
  // The assignment is exact for equation (5), that is without gradients and optimizer.
  options.constants = cost::bare_constants();
  options.constants.gradient_wire_bytes = 1e-12;
  const auto result = search(model, cluster, options);
  ASSERT_FALSE(result.best.empty());
  double least = 1e9;
  int priced = 0;
  for (const int tp : {1, 2}) {
    for (const int pp : {1, 2, 4}) {
      for (int mbs = 1; mbs <= 16; ++mbs) {
        const int dp = 4 / tp / pp;
        if (dp * tp * pp != 4 || 16 % (dp * mbs) != 0) {
          continue;
        }
        for (const char* letters : {"PDT", "DPT"}) {
          for (const std::vector<int>& devices :
               {std::vector<int>{0, 1, 2, 3}, std::vector<int>{2, 3, 0, 1}}) {
            for (std::vector<int>& cuts : all_boundaries(5, pp)) {
              auto strategy = cost::small_strategy(pp, dp, tp, mbs, 5);
              strategy.device_of_rank = cost::lay_out(strategy, letters, devices);
              strategy.boundaries = std::move(cuts);
              least =
                  std::min(least, cost::price(model, cluster, strategy, options.constants).seconds);
              ++priced;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(priced, 200);
  EXPECT_NEAR(result.best.front().cost.seconds, least, 1e-12);
  for (std::size_t i = 1; i < result.best.size(); ++i) {
    EXPECT_LE(result.best[i - 1].cost.seconds, result.best[i].cost.seconds);
  }
}

// Four nodes of one device in a pipeline, with fast links in the order 1, 0, 2, 3 alone. A chain
// that begins with the first node and takes the nearest next has a slow link behind its second.
cost::Cluster forked_cluster() {
  auto cluster = small_cluster(4, 0);
  cluster.kinds.pop_back();
  for (auto& node : cluster.nodes) {
    node.count = 1;
  }
  for (const auto& [a, b] : {std::pair{0, 3}, {1, 2}, {1, 3}}) {
    cluster.links.push_back({.first = a, .second = b, .bytes_per_s = 1e8});
  }
  return cluster;
}

cost::DescribedModel pipeline_model() {
  auto model = small_model(8);
  model.global_batch_size = 5; // neither two nor four replicas divide it
  model.activation_checkpointing = false;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    model.layers[i].output_elements_per_sample = 200'000;
    model.measured().layers[i].forward_seconds_per_sample = {{"fast", {{1, 1e-3}}}};
  }
  return model;
}

TEST(Search, AnnealingFindsPlacementsThatTheHeuristicLacks) {
  const auto model = pipeline_model();
  const auto cluster = forked_cluster();
  for (const bool runnable : {false, true}) {
    SearchOptions options;
    options.runnable_only = runnable;
    options.most_orders = 0; // of the heuristic alone
    const double amp = search(model, cluster, options).best.front().cost.seconds;
    options.method = Method::kAnnealing;
    const auto found = search(model, cluster, options).best.front();
    // One transfer of 400 kB at 1 GB/s in place of 0.1 GB/s, there and back.
    EXPECT_NEAR(amp - found.cost.seconds, 2 * (4e-3 - 0.4e-3) / 0.8, 1e-9) << runnable;
    EXPECT_EQ(not_runnable(found, model).has_value(), !runnable);
  }
}

TEST(Search, WhatAnnealingWritesIsWhatItListsFirst) {
  const auto model = pipeline_model();
  const auto cluster = forked_cluster();
  SearchOptions options = with_method(Method::kAnnealing);
  options.runnable_only = true;
  const auto result = search(model, cluster, options);
  for (const Candidate& one : result.best) {
    EXPECT_FALSE(not_runnable(one, model));
    EXPECT_EQ(
        one.strategy.device_of_rank,
        cost::lay_out(
            one.strategy, one.strategy.placement, devices_in_order(cluster, one.node_order)));
  }
  EXPECT_THAT(summary(result, model), Not(HasSubstr("only priced")));
  // Where hosts have their places already, nothing is left to anneal.
  options.keep_node_order = true;
  EXPECT_EQ(
      search(model, cluster, options).best.front().node_order, (std::vector<int>{0, 1, 2, 3}));
}

TEST(Search, TheListSaysWhatOnlyHasAPrice) {
  const auto model = pipeline_model();
  SearchOptions options = with_method(Method::kAnnealing);
  options.most_orders = 0;
  const auto result = search(model, forked_cluster(), options);
  const std::string text = summary(result, model);
  EXPECT_THAT(
      text, HasSubstr("placement own  (only priced: its placement is none of the runtime's"));
}

TEST(Search, MethodsKeepTheirOrder) {
  const auto model = small_model(8, 1.0);
  const auto cluster = small_cluster(2, 2);
  const auto best = [&](Method method) {
    return search(model, cluster, with_method(method)).best.front().cost.seconds;
  };
  EXPECT_LT(best(Method::kAmp), 0.99 * best(Method::kMegatron)); // even layers are no optimum here
  EXPECT_LT(best(Method::kAmp), 0.99 * best(Method::kRandom));
}

// For every microbatch size the heuristic takes the least tp x pp that fits, and cuts evenly.
TEST(Search, MegatronTakesTheLeastDegreesThatFit) {
  auto model = small_model(8);
  const auto cluster = small_cluster(4, 0);
  const auto products = [&](std::int64_t parameters) {
    for (auto& layer : model.layers) {
      layer.parameters = parameters;
    }
    std::set<int> found;
    SearchOptions options = with_method(Method::kMegatron);
    options.keep = 1000;
    for (const Candidate& one : search(model, cluster, options).best) {
      // Larger microbatches leave no batch for eight replicas.
      if (one.strategy.microbatch_size == 1) {
        found.insert(one.strategy.pp * one.strategy.tp);
      }
      EXPECT_EQ(one.strategy.boundaries, cost::even_cuts(8, one.strategy.pp));
    }
    return found;
  };
  // Thirty bytes a parameter: eight layers of ten, of eighty and of two hundred million on devices
  // that have twelve thousand million bytes left.
  EXPECT_EQ(products(10'000'000), std::set<int>{1});
  EXPECT_EQ(products(80'000'000), std::set<int>{2});
  EXPECT_EQ(products(200'000'000), std::set<int>{4});
}

// All degrees with even layers: at least as good as the heuristic, and no better than the search.
TEST(Search, UniformIsTheBestOfEvenLayers) {
  const auto model = small_model(8, 1.0);
  const auto cluster = small_cluster(2, 2);
  const auto found = [&](Method method) {
    SearchOptions options = with_method(method);
    options.keep = 1000;
    return search(model, cluster, options).best;
  };
  const auto uniform = found(Method::kUniform);
  for (const Candidate& one : uniform) {
    EXPECT_EQ(one.strategy.boundaries, cost::even_cuts(8, one.strategy.pp));
  }
  const auto seconds = [](const std::vector<Candidate>& best) { return best[0].cost.seconds; };
  EXPECT_LE(seconds(uniform), seconds(found(Method::kMegatron)));
  EXPECT_GT(uniform.size(), found(Method::kMegatron).size());
  EXPECT_LT(seconds(found(Method::kAmp)), 0.99 * seconds(uniform));
}

TEST(Search, OneStrategyMayBeExecuted) {
  const auto model = small_model(4, 0.3);
  const auto cluster = small_cluster(1, 1);
  SearchOptions options;
  options.keep = 1;
  EXPECT_EQ(search(model, cluster, options).best.front().simulated_seconds, 0);
  options.simulate = 1;
  const Candidate best = search(model, cluster, options).best.front();
  EXPECT_EQ(
      best.simulated_seconds,
      simulator::simulate(model, cluster, best.strategy, {.keep_events = false}).iteration_seconds);
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
       {Method::kAmp, Method::kAnnealing, Method::kMegatron, Method::kUniform, Method::kRandom}) {
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

TEST(Search, ChainsOfNodesLeaveAGroupOnce) {
  const auto model = small_model(6, 0.5);
  auto cluster = small_cluster(4, 0);
  for (cost::Node& node : cluster.nodes) {
    node.count = 1;
  }
  cluster.groups = {{{0, 2}, 1e6}};
  std::set<std::vector<int>> orders;
  const SearchOptions options;
  for (const Point& point : points_of(model, cluster, options)) {
    for (const Layout& layout : layouts_of(model, cluster, point, options)) {
      orders.insert(layout.node_order);
    }
  }
  // Some order has the group's nodes at one end.
  EXPECT_TRUE(std::any_of(orders.begin(), orders.end(), [](const std::vector<int>& order) {
    const auto in_group = [&](std::size_t i) { return order.at(i) % 2 == 0; };
    return in_group(0) == in_group(1) && in_group(2) == in_group(3);
  }));
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

// Each kind of device is slow for one half of the layers, and every stage has both kinds.
TEST(Search, AStageIsAsSlowAsItsSlowestDeviceForItsLayers) {
  auto model = small_model(8);
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    auto& seconds = model.measured().layers[i].forward_seconds_per_sample;
    // Over the whole model "slow" takes longer, but not over the last five layers.
    seconds["fast"][1] = i < 3 ? 1e-3 : 7e-3;
    seconds["slow"][1] = i < 3 ? 8e-3 : 3e-3;
  }
  const auto cluster = small_cluster(1, 1);
  const SearchOptions options;
  const Pricer pricer(model, cluster, options);
  Point point;
  point.pp = 2;
  point.dp = 2;
  auto strategy = pricer.strategy(point);
  strategy.placement = "DPT";
  strategy.device_of_rank = cost::lay_out(strategy, "DPT", {0, 2, 3, 1});
  const auto found = pricer.assigned(strategy, pricer.table(point));
  ASSERT_TRUE(found);
  // "slow" alone would be cut behind two layers, 16 ms and 23. But then "fast" takes 36 for the
  // second stage, and behind four layers 28.
  EXPECT_EQ(found->strategy.boundaries, (std::vector<int>{0, 4, 8}));
  double least = 1e9;
  for (int cut = 1; cut < 8; ++cut) {
    strategy.boundaries = {0, cut, 8};
    least = std::min(least, pricer.priced(strategy).cost.seconds);
  }
  EXPECT_DOUBLE_EQ(found->cost.seconds, least);
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

// Four replicas of 430 million parameters: 13 GB each, or 8 with the optimizer's state divided.
cost::DescribedModel too_large_by_its_state() {
  auto model = small_model(1);
  model.activation_checkpointing = false;
  for (auto& [device, seconds] : model.measured().layers[0].forward_seconds_per_sample) {
    seconds.erase(2);
  }
  model.layers[0].parameters = 430'000'000;
  return model;
}

TEST(Search, StateIsShardedWhereNothingFitsOtherwise) {
  auto model = too_large_by_its_state();
  SearchOptions options;
  options.runnable_only = true;
  options.save_memory = true;
  const auto found = search(model, small_cluster(2, 0), options);
  for (const Candidate& one : found.best) {
    EXPECT_TRUE(one.strategy.shard_optimizer_state);
    EXPECT_TRUE(one.cost.fits());
    const auto config = to_config(one, model);
    EXPECT_TRUE(config.shard_optimizer_state || config.sharded_data_parallel_degree > 1);
    EXPECT_FALSE(one.strategy.activation_checkpointing);
  }
  EXPECT_THAT(summary(found, model), HasSubstr("sharded optimizer state"));
  // What fits as it is stays as it is, and what never fits is refused as before.
  model.layers[0].parameters = 100'000'000;
  EXPECT_FALSE(
      search(model, small_cluster(2, 0), options).best.front().strategy.shard_optimizer_state);
  model.layers[0].parameters = 4'000'000'000;
  EXPECT_THROW(search(model, small_cluster(2, 0), options), NothingFits);
}

// What four layers keep of one sample does not fit, what one of them makes does.
TEST(Search, ActivationsAreRecomputedWhereNothingFitsOtherwise) {
  auto model = small_model(4, 0, "transformer_layer");
  model.activation_checkpointing = false;
  model.global_batch_size = 2;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    model.layers[i].output_elements_per_sample = 28'000'000;
    model.layers[i].parameters = 20'000'000;
    for (auto& [device, seconds] : model.measured().layers[i].forward_seconds_per_sample) {
      seconds.erase(2);
    }
  }
  SearchOptions options;
  EXPECT_THROW(search(model, small_cluster(1, 0), options), NothingFits);
  options.save_memory = true;
  const auto found = search(model, small_cluster(1, 0), options);
  double before = 0;
  ASSERT_FALSE(found.best.empty());
  for (const Candidate& one : found.best) {
    EXPECT_TRUE(one.cost.fits());
    EXPECT_TRUE(one.strategy.activation_checkpointing);
    EXPECT_GE(one.cost.seconds, before);
    before = one.cost.seconds;
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
  for (const char* part :
       {"nine of ten measured runs", "computation", "bubble", "gradients", "optimizer", "needs"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
  EXPECT_THAT(summary(result, model), HasSubstr("pp "));
}

} // namespace
} // namespace tessera::planner
