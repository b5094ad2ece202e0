// What a search may choose beside degrees: savings, schedules, memory, nodes and objectives.
#include <limits>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/planner/candidate_text.h"
#include "tessera/planner/nothing_fits.h"
#include "tessera/planner/objective.h"
#include "tessera/planner/search.h"
#include "tessera/planner/to_config.h"

#include "tests/unit/cost/small_cases.h"
#include "tests/unit/planner/every_strategy.h"

namespace tessera::planner {
namespace {

using cost::small_cluster;
using cost::small_model;
using testing::HasSubstr;

cost::Cluster one_device() {
  auto cluster = small_cluster(1, 0);
  cluster.kinds.resize(1);
  cluster.kinds[0].host_bytes_per_s = 1e9;
  cluster.kinds[0].host_memory_bytes = 1e11;
  cluster.nodes[0].count = 1;
  return cluster;
}

TEST(Offloading, AMicrobatchIsNoShorterThanItsTransfers) {
  auto model = small_model(1);
  model.global_batch_size = 4;
  model.layers[0].output_elements_per_sample = 1'000'000;
  const auto cluster = one_device();
  auto strategy = cost::small_strategy(1, 1, 1, 1, 1);
  strategy.schedule = cost::Schedule::kCustom; // all microbatches in flight
  strategy.activation_checkpointing = false;
  const cost::LayerTable here(model, cluster, strategy, {});
  const auto kept = cost::price(model, cluster, strategy);
  strategy.offload_activations = true;
  const cost::LayerTable away(model, cluster, strategy, {});
  const auto offloaded = cost::price(model, cluster, strategy);
  const double forward = here.forward_seconds(0, 0, 1);
  const double backward = here.compute_seconds(0, 0, 1) - forward;
  ASSERT_LT(backward, 4e-3);
  // Four million bytes of a microbatch at one thousand million a second, there and back.
  EXPECT_DOUBLE_EQ(away.forward_seconds(0, 0, 1), 4e-3);
  EXPECT_DOUBLE_EQ(away.compute_seconds(0, 0, 1), 8e-3);
  EXPECT_NEAR(offloaded.seconds - kept.seconds, 4 * (8e-3 - forward - backward), 1e-12);
  // Of four microbatches two are on the device.
  EXPECT_DOUBLE_EQ(kept.stages[0].memory.activations, 16e6);
  EXPECT_DOUBLE_EQ(offloaded.stages[0].memory.activations, 8e6);
  EXPECT_DOUBLE_EQ(offloaded.stages[0].host_bytes, 16e6);
}

TEST(Offloading, TheStepStreamsTheState) {
  auto model = small_model(4);
  const auto cluster = one_device();
  auto strategy = cost::small_strategy(1, 1, 1, 1, 4);
  strategy.offload_optimizer_state = true;
  const auto cost = cost::price(model, cluster, strategy);
  EXPECT_DOUBLE_EQ(cost.optimizer_seconds, 4e6 * 12 / 1e9);
  EXPECT_DOUBLE_EQ(cost.stages[0].memory.optimizer, 2e6 * 12); // two layers of four
  EXPECT_DOUBLE_EQ(cost.stages[0].host_bytes, 4e6 * 12);
  EXPECT_TRUE(cost.fits());
  auto small_host = cluster;
  small_host.kinds[0].host_memory_bytes = 4e7;
  EXPECT_FALSE(cost::price(model, small_host, strategy).fits());
  auto unknown = cluster;
  unknown.kinds[0].host_bytes_per_s = 0;
  EXPECT_THROW(cost::price(model, unknown, strategy), ConfigError);
  // Another optimizer's state.
  model.optimizer_state_bytes = 2;
  EXPECT_DOUBLE_EQ(cost::price(model, cluster, strategy).stages[0].host_bytes, 4e6 * 2);
}

TEST(Savings, WhatThePlanCannotSayIsNotWritten) {
  auto model = small_model(2);
  model.activation_checkpointing = false;
  Candidate candidate;
  candidate.strategy = cost::small_strategy(1, 2, 1, 1, 2);
  candidate.strategy.activation_checkpointing = false;
  EXPECT_FALSE(not_runnable(candidate, model));
  for (bool cost::Strategy::*way :
       {&cost::Strategy::offload_optimizer_state,
        &cost::Strategy::offload_activations,
        &cost::Strategy::activation_checkpointing}) {
    Candidate other = candidate;
    other.strategy.*way = true;
    EXPECT_TRUE(not_runnable(other, model));
    EXPECT_THROW(to_config(other, model), PlanError);
  }
}

TEST(Savings, WhatRunsTakesOnlyWhatTheRuntimeHas) {
  auto model = small_model(4, 0, "transformer_layer");
  model.activation_checkpointing = false;
  auto cluster = small_cluster(1, 0);
  for (auto& kind : cluster.kinds) {
    kind.host_bytes_per_s = 1e12;
    kind.host_memory_bytes = 1e12;
  }
  SearchOptions options;
  options.runnable_only = true;
  options.compare_savings = true;
  options.keep = 1000;
  bool sharded = false;
  for (const Candidate& one : search(model, cluster, options).best) {
    EXPECT_FALSE(not_runnable(one, model));
    sharded = sharded || one.strategy.shard_optimizer_state;
  }
  EXPECT_TRUE(sharded);
  // A job can recompute its layers though no configuration says so.
  options.can_recompute = true;
  bool recomputed = false;
  bool offloaded = false;
  for (const Candidate& one : search(model, cluster, options).best) {
    recomputed = recomputed || one.strategy.activation_checkpointing;
    offloaded = offloaded || one.strategy.offload_activations;
    EXPECT_FALSE(not_runnable(one, model));
  }
  EXPECT_TRUE(offloaded);
  EXPECT_TRUE(recomputed);
}

TEST(Search, SchedulesAreCompared) {
  SearchOptions options;
  options.compare_schedules = true;
  options.keep = 1000;
  std::set<cost::Schedule> found;
  for (const Candidate& one : search(small_model(4), small_cluster(1, 0), options).best) {
    found.insert(one.strategy.schedule);
    EXPECT_TRUE(one.strategy.schedule == cost::Schedule::kInterleaved || one.strategy.pp > 1);
  }
  EXPECT_EQ(found.size(), 2u);
}

TEST(Search, AMemoryLimitIsAsSmallerDevices) {
  auto model = small_model(4);
  for (auto& layer : model.layers) {
    layer.parameters = 60'000'000;
  }
  const auto cluster = small_cluster(2, 0);
  auto smaller = cluster;
  for (auto& kind : smaller.kinds) {
    kind.memory_bytes = std::min(kind.memory_bytes, 4e9);
  }
  // Gradients cost nothing, so four replicas are best, which need nine thousand million bytes.
  SearchOptions options;
  options.constants = cost::bare_constants();
  options.constants.gradient_wire_bytes = 1e-12;
  SearchOptions limited = options;
  limited.memory_limit_bytes = 4e9;
  const auto expected = search(model, smaller, options);
  const auto found = search(model, cluster, limited);
  const auto free = search(model, cluster, options);
  ASSERT_EQ(found.best.size(), expected.best.size());
  for (std::size_t i = 0; i < found.best.size(); ++i) {
    EXPECT_EQ(found.best[i].cost.seconds, expected.best[i].cost.seconds);
    EXPECT_LE(found.best[i].cost.needed_bytes(), 4e9);
  }
  EXPECT_GT(found.best.front().cost.seconds, free.best.front().cost.seconds);
  limited.memory_limit_bytes = 1.2e9;
  EXPECT_THROW(search(model, cluster, limited), NothingFits);
}

// Two islands of two nodes, whose numbers no placement strategy puts side by side.
TEST(Placement, ReplicasLieOnIslandsOfFastLinks) {
  const auto model = small_model(8);
  auto cluster = small_cluster(4, 0);
  for (auto& node : cluster.nodes) {
    node.count = 1;
    node.inter_bytes_per_s = 1e10;
  }
  for (const auto& [a, b] : {std::pair{0, 1}, {0, 2}, {1, 3}, {2, 3}}) {
    cluster.links.push_back({.first = a, .second = b, .bytes_per_s = 1e8});
  }
  const auto best = search(model, cluster, {}).best.front();
  ASSERT_EQ(best.strategy.dp, 2);
  ASSERT_EQ(best.strategy.pp, 2);
  for (int stage = 0; stage < 2; ++stage) {
    std::set<int> nodes;
    for (int d = 0; d < 2; ++d) {
      nodes.insert(
          best.strategy.device_of_rank[static_cast<std::size_t>(best.strategy.rank(stage, d, 0))]);
    }
    EXPECT_TRUE(nodes == (std::set<int>{0, 3}) || nodes == (std::set<int>{1, 2})) << stage;
  }
  EXPECT_NEAR(best.cost.seconds, least_seconds(model, cluster, cost::Strategy{}, {}), 1e-9);
  SearchOptions keep;
  keep.keep_node_order = true;
  EXPECT_GT(search(model, cluster, keep).best.front().cost.seconds, 1.01 * best.cost.seconds);
}

TEST(Placement, TensorParallelGroupsStayInANode) {
  auto model = small_model(4, 0, "transformer_layer");
  for (auto& layer : model.layers) {
    layer.output_elements_per_sample = 1'000'000;
  }
  const auto cluster = small_cluster(2, 0);
  SearchOptions options;
  options.tensor_degree = 2;
  const auto result = search(model, cluster, options);
  const auto node_of = cluster.node_of_device();
  for (const Candidate& one : result.best) {
    const auto& device = one.strategy.device_of_rank;
    for (std::size_t rank = 0; rank < device.size(); rank += 2) {
      EXPECT_EQ(
          node_of[static_cast<std::size_t>(device[rank])],
          node_of[static_cast<std::size_t>(device[rank + 1])]);
    }
  }
  double least = std::numeric_limits<double>::infinity();
  every_strategy(model, cluster, {}, {}, [&](const auto& strategy, const auto& cost) {
    least = strategy.tp == 2 ? std::min(least, cost.seconds) : least;
  });
  EXPECT_NEAR(result.best.front().cost.seconds, least, 1e-9);
}

// The nodes of a set alone; written out here, so that the search is not its own oracle.
template <typename Visit>
void every_set(const cost::Cluster& cluster, const Visit& visit) {
  for (unsigned bits = 1; bits < 1u << cluster.nodes.size(); ++bits) {
    cost::Cluster part = cluster;
    part.nodes.clear();
    for (std::size_t n = 0; n < cluster.nodes.size(); ++n) {
      if ((bits >> n & 1u) != 0) {
        part.nodes.push_back(cluster.nodes[n]);
      }
    }
    visit(part);
  }
}

TEST(NodeSets, ASlowNodeIsLeftOut) {
  auto model = small_model(4, 0, "transformer_layer");
  for (auto& layer : model.measured().layers) {
    for (auto& [degree, seconds] : layer.forward_seconds_per_sample["slow"]) {
      seconds *= 20;
    }
  }
  auto cluster = small_cluster(2, 1);
  std::swap(cluster.nodes[1], cluster.nodes[2]); // so that the slow one is in the middle
  SearchOptions options;
  const double all = search(model, cluster, options).best.front().cost.seconds;
  options.subsets = true;
  const auto result = search(model, cluster, options);
  const Candidate& best = result.best.front();
  double least = std::numeric_limits<double>::infinity();
  every_set(cluster, [&](const cost::Cluster& part) {
    least = std::min(least, least_seconds(model, part, cost::Strategy{}, {}));
  });
  EXPECT_NEAR(best.cost.seconds, least, 1e-9);
  EXPECT_LE(result.lower_bound, least * (1 + 1e-12));
  EXPECT_LT(best.cost.seconds, 0.9 * all);
  EXPECT_TRUE(best.leaves_out);
  EXPECT_EQ(best.node_order, (std::vector<int>{0, 2}));
  EXPECT_EQ(
      std::set<int>(best.strategy.device_of_rank.begin(), best.strategy.device_of_rank.end()),
      (std::set<int>{0, 1, 4, 5}));
  EXPECT_THAT(summary(result, model), HasSubstr("on nodes 0,2"));
  EXPECT_FALSE(explain(best, model, cluster).empty());
  options.spare_nodes = 2;
  for (const Candidate& one : search(model, cluster, options).best) {
    EXPECT_EQ(one.node_order.size(), 1u);
  }
  options.spare_nodes = 3;
  EXPECT_THROW(search(model, cluster, options), ConfigError);
}

TEST(Objective, TheCheapestOfAllIsFound) {
  const auto model = small_model(4, 0, "transformer_layer");
  auto cluster = small_cluster(1, 2);
  SearchOptions options;
  options.objective = Objective::kCost;
  EXPECT_THROW(search(model, cluster, options), ConfigError);
  cluster.kinds[0].price_per_hour = 3;
  cluster.kinds[1].price_per_hour = 1;
  const auto result = search(model, cluster, options);
  double least = std::numeric_limits<double>::infinity();
  double fastest = least;
  every_set(cluster, [&](const cost::Cluster& part) {
    double rate = 0;
    for (const auto& node : part.nodes) {
      rate += node.count * cluster.kinds[static_cast<std::size_t>(node.kind)].price_per_hour;
    }
    const double seconds = least_seconds(model, part, cost::Strategy{}, {});
    least = std::min(least, seconds * rate / 3600);
    fastest = std::min(fastest, seconds);
  });
  const double found = step_costs(result.best.front(), cluster).price;
  EXPECT_NEAR(found, least, 1e-9 * least);
  // The front begins with the fastest and ends with the cheapest, and none of it is beaten.
  ASSERT_GE(result.front.size(), 2u);
  EXPECT_NEAR(result.front.front().cost.seconds, fastest, 1e-9);
  EXPECT_NEAR(step_costs(result.front.back(), cluster).price, least, 1e-9 * least);
  for (std::size_t i = 1; i < result.front.size(); ++i) {
    EXPECT_GT(result.front[i].seconds(), result.front[i - 1].seconds());
    EXPECT_LT(
        step_costs(result.front[i], cluster).price, step_costs(result.front[i - 1], cluster).price);
  }
  EXPECT_THAT(front_text(result, cluster), HasSubstr("front: "));
}

TEST(Objective, WithoutPricesThereIsNoFront) {
  auto cluster = small_cluster(1, 1);
  EXPECT_TRUE(search(small_model(4), cluster, {}).front.empty());
  cluster.kinds[1].watts = 300; // of one kind is enough
  EXPECT_FALSE(search(small_model(4), cluster, {}).front.empty());
}

TEST(Objective, EnergyIsOfWorkAndOfWaiting) {
  const auto model = small_model(4);
  auto cluster = one_device();
  cluster.kinds[0].memory_bytes_per_s = 0; // no optimizer step
  SearchOptions options;
  options.objective = Objective::kEnergy;
  EXPECT_THROW(search(model, cluster, options), ConfigError);
  cluster.kinds[0].watts = 300;
  const auto alone = search(model, cluster, options).best.front();
  EXPECT_NEAR(step_costs(alone, cluster).joules, 300 * alone.cost.seconds, 1e-9);
  // Two stages of two microbatches: each works for two thirds of the time.
  auto pair = cluster;
  pair.nodes[0].count = 2;
  pair.kinds[0].idle_watts = 30;
  Candidate candidate;
  candidate.strategy = cost::small_strategy(2, 1, 1, 8, 4);
  candidate.cost = cost::price(model, pair, candidate.strategy, cost::bare_constants());
  candidate.microbatches = 2;
  const double seconds = candidate.cost.seconds;
  const double busy = 2 * candidate.cost.stages[0].seconds();
  EXPECT_NEAR(busy / seconds, 2.0 / 3, 0.01);
  EXPECT_NEAR(step_costs(candidate, pair).joules, 2 * (300 * busy + 30 * (seconds - busy)), 1e-9);
}

} // namespace
} // namespace tessera::planner
