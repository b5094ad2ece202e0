// Parts of the search on cases that can be worked out by hand: bounds, sets of nodes, orders,
// even cuts, judgements and tables.
#include <limits>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/planner/judgement.h"
#include "tessera/planner/lower_bound.h"
#include "tessera/planner/methods.h"
#include "tessera/planner/node_sets.h"
#include "tessera/planner/objective.h"
#include "tessera/planner/pricer.h"
#include "tessera/planner/savings.h"
#include "tessera/planner/search.h"
#include "tessera/planner/space.h"
#include "tessera/planner/strategies_csv.h"

#include "tests/unit/cost/small_cases.h"

namespace tessera::planner {
namespace {

using cost::small_cluster;
using cost::small_model;
using testing::ElementsAre;
using testing::HasSubstr;

// -- The lower bound --

double bound_of(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    cost::Strategy strategy,
    const cost::Constants& constants = cost::bare_constants()) {
  SearchOptions options;
  options.constants = constants;
  strategy.boundaries.clear();
  strategy.device_of_rank.clear();
  const cost::LayerTable table(model, cluster, strategy, constants);
  return LowerBound(model, cluster, options).seconds(strategy, table);
}

TEST(LowerBound, IsThePriceWhereDevicesAndLayersAreAlike) {
  const auto model = small_model(8);
  auto cluster = small_cluster(1, 0);
  cluster.nodes[0].count = 4;
  cost::Constants constants; // with latencies, optimizer and losses of efficiency
  for (const auto& [pp, dp] : {std::pair(1, 1), {2, 1}, {4, 1}, {2, 2}, {1, 4}}) {
    cluster.nodes[0].count = pp * dp;
    for (const int mbs : {1, 2}) {
      const auto strategy = cost::small_strategy(pp, dp, 1, mbs, 8);
      const double priced = cost::price(model, cluster, strategy, constants).seconds;
      EXPECT_NEAR(bound_of(model, cluster, strategy, constants) / priced, 1, 1e-9) << pp << dp;
    }
  }
}

TEST(LowerBound, OfTwoKindsCountsTheirSpeeds) {
  // Devices that need 1 and 2 ms for a layer have together the speed of one and a half fast ones.
  auto model = small_model(9);
  model.global_batch_size = 8;
  for (auto& layer : model.layers) {
    layer.output_elements_per_sample = 0;
    layer.parameters = 0;
  }
  auto cluster = small_cluster(1, 1);
  cluster.nodes[0].count = cluster.nodes[1].count = 1;
  const auto strategy = cost::small_strategy(2, 1, 1, 1, 9);
  // Of eight microbatches seven take a period, in which 27 ms of work are divided by 1.5; one
  // passes all layers on fast devices.
  EXPECT_NEAR(bound_of(model, cluster, strategy), 7 * 18e-3 + 27e-3, 1e-9);
  // Cores that ranks share bound the work of both: 8 x 27 ms on 1.25 cores.
  cluster.nodes[0].cores = 0.75;
  cluster.nodes[1].cores = 0.5;
  EXPECT_NEAR(bound_of(model, cluster, strategy), 8 * 27e-3 / 1.25, 1e-9);
  cluster.nodes[1].cores = 0; // one of its own for every rank
  EXPECT_NEAR(bound_of(model, cluster, strategy), 7 * 18e-3 + 27e-3, 1e-9);
}

TEST(LowerBound, CountsTheSmallestMessagesOfEveryCut) {
  auto model = small_model(4);
  model.global_batch_size = 1;
  for (std::size_t i = 0; i < 4; ++i) {
    model.layers[i].output_elements_per_sample = i == 1 ? 500'000 : 5'000'000;
    model.layers[i].parameters = 0;
  }
  const auto cluster = small_cluster(2, 0); // 10 GB/s at best
  auto constants = cost::bare_constants();
  constants.link_latency_seconds = 1e-3;
  // Three cuts, all of which have to be made; the bound of the assignment is 12 ms and 21 MB both
  // ways.
  EXPECT_NEAR(
      bound_of(model, cluster, cost::small_strategy(4, 1, 1, 1, 4), constants),
      12e-3 + 2 * (21e6 / 10e9 + 3e-3),
      1e-9);
  // Of two stages the cut is behind the second layer.
  EXPECT_NEAR(
      bound_of(model, small_cluster(1, 0), cost::small_strategy(2, 1, 1, 1, 4), constants),
      12e-3 + 2 * (1e6 / 10e9 + 1e-3),
      1e-9);
}

TEST(LowerBound, GradientsAreThoseOfTheSmallestLargestStage) {
  // Layers of 1, 2, 3 and 4 million parameters in two runs: at least 6 million in one.
  auto model = small_model(4);
  for (std::size_t i = 0; i < 4; ++i) {
    model.layers[i].parameters = static_cast<std::int64_t>(i + 1) * 1'000'000;
  }
  auto cluster = small_cluster(1, 0);
  cluster.nodes[0].count = 4;
  SearchOptions options;
  options.constants = cost::bare_constants();
  options.constants.link_latency_seconds = 1e-3;
  options.constants.optimizer_traffic_bytes = 750;
  const auto exchange = [&](cost::Strategy strategy) {
    const cost::LayerTable table(model, cluster, strategy, options.constants);
    return LowerBound(model, cluster, options).exchange_seconds(strategy, table);
  };
  auto strategy = cost::small_strategy(2, 2, 1, 1, 4);
  const double step = 6e6 * 750 / 0.75e12;
  // A ring of two: all bytes once each way at 10 GB/s, two steps.
  EXPECT_NEAR(exchange(strategy), step + 24e6 / 10e9 + 2e-3, 1e-9);
  strategy.overlap_gradients = true;
  EXPECT_NEAR(exchange(strategy), step, 1e-9);
  EXPECT_NEAR(exchange(cost::small_strategy(2, 1, 1, 1, 4)), step, 1e-9);
  // Four runs have one layer each, one run has all.
  EXPECT_NEAR(exchange(cost::small_strategy(4, 1, 1, 1, 4)), step * 4 / 6, 1e-9);
  EXPECT_NEAR(exchange(cost::small_strategy(1, 1, 1, 1, 4)), step * 10 / 6, 1e-9);
}

// -- Sets of nodes and their orders --

TEST(NodeSets, OfFewNodesAllAreTriedTheLargestFirst) {
  auto cluster = small_cluster(3, 0);
  cluster.nodes[1].inter_bytes_per_s = 5e8;
  SearchOptions options;
  // Nodes 0 and 2 are alike, but their order among others is not.
  EXPECT_THAT(
      node_sets(small_model(2), cluster, options),
      ElementsAre(
          ElementsAre(0, 1, 2),
          ElementsAre(0, 1),
          ElementsAre(0, 2),
          ElementsAre(1, 2),
          ElementsAre(0),
          ElementsAre(1)));
  options.spare_nodes = 1;
  EXPECT_EQ(node_sets(small_model(2), cluster, options).size(), 5u);
  EXPECT_EQ(node_sets(small_model(2), cluster, options).front(), (std::vector<int>{0, 1}));
  // Links name nodes, so none is like another.
  cluster.links = {{.first = 0, .second = 1, .bytes_per_s = 1e8}};
  options.spare_nodes = 2;
  EXPECT_THAT(
      node_sets(small_model(2), cluster, options),
      ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2)));
  options.spare_nodes = 3;
  EXPECT_THROW(node_sets(small_model(2), cluster, options), ConfigError);
}

TEST(NodeSets, NodesOfOtherNetworkCardsOrStreamsAreNotAlike) {
  SearchOptions options;
  options.spare_nodes = 1;
  const auto sets = [&](const cost::Cluster& cluster) {
    return node_sets(small_model(2), cluster, options);
  };
  const auto alike = ElementsAre(ElementsAre(0, 1), ElementsAre(0));
  const auto first_differs =
      ElementsAre(ElementsAre(0, 1), ElementsAre(1, 2), ElementsAre(0), ElementsAre(1));
  auto cluster = small_cluster(3, 0);
  EXPECT_THAT(sets(cluster), alike);
  cluster.nodes[0].network_cards = 2;
  EXPECT_THAT(sets(cluster), first_differs);
  cluster = small_cluster(3, 0);
  cluster.nodes[0].stream_bytes_per_s = 1e8;
  EXPECT_THAT(sets(cluster), first_differs);
}

TEST(NodeSets, OfManyNodesTheSlowestAreLeftOutOneByOneThenByHalves) {
  // Twenty fast nodes behind twenty slow ones.
  auto cluster = small_cluster(20, 20);
  std::rotate(cluster.nodes.begin(), cluster.nodes.begin() + 20, cluster.nodes.end());
  std::set<std::size_t> sizes;
  bool fast_alone = false;
  for (const auto& set : node_sets(small_model(2), cluster, {})) {
    sizes.insert(set.size());
    EXPECT_TRUE(std::is_sorted(set.begin(), set.end()));
    fast_alone = fast_alone || (set.size() == 20 && set.front() == 20);
  }
  EXPECT_TRUE(fast_alone);
  // From 40 down to 24 one by one; 12, and from there one by one; 20 of one kind.
  std::set<std::size_t> expected = {20};
  for (std::size_t n = 1; n <= 12; ++n) {
    expected.insert(n);
  }
  for (std::size_t n = 24; n <= 40; ++n) {
    expected.insert(n);
  }
  EXPECT_EQ(sizes, expected);
}

TEST(NodeSets, APartKeepsWhatIsBetweenItsNodes) {
  auto cluster = small_cluster(2, 2);
  cluster.links = {
      {.first = 0, .second = 3, .bytes_per_s = 1e8},
      {.first = 3, .second = 2, .bytes_per_s = 2e8},
      {.first = 1, .second = 2, .bytes_per_s = 3e8}};
  cluster.collectives = {
      {"all_reduce", 2, 2, 1e6, 0.1, {2, 3}},
      {"all_reduce", 2, 2, 1e6, 0.2, {1, 2}},
      {"all_reduce", 4, 2, 1e6, 0.3, {}},
      {"all_reduce", 8, 4, 1e6, 0.4, {}}};
  const cost::Cluster part = part_of(cluster, {2, 3});
  EXPECT_EQ(part.nodes.size(), 2u);
  EXPECT_EQ(part.nodes[0].kind, 1);
  ASSERT_EQ(part.links.size(), 1u);
  EXPECT_EQ(part.links[0].first, 1);
  EXPECT_EQ(part.links[0].second, 0);
  EXPECT_EQ(part.links[0].bytes_per_s, 2e8);
  ASSERT_EQ(part.collectives.size(), 2u);
  EXPECT_EQ(part.collectives[0].among, (cost::NodeSet{0, 1}));
  EXPECT_EQ(part.collectives[1].seconds, 0.3);
  Candidate candidate;
  candidate.strategy.device_of_rank = {3, 0};
  candidate.node_order = {1, 0};
  name_in_whole(candidate, cluster, {2, 3});
  EXPECT_THAT(candidate.strategy.device_of_rank, ElementsAre(7, 4));
  EXPECT_THAT(candidate.node_order, ElementsAre(3, 2));
  EXPECT_TRUE(candidate.leaves_out);
  Candidate all;
  name_in_whole(all, small_cluster(2, 0), {0, 1});
  EXPECT_FALSE(all.leaves_out);
}

TEST(NodeOrders, AreGroupedByKindAndChainedByLinks) {
  auto cluster = small_cluster(2, 2);
  std::swap(cluster.nodes[1], cluster.nodes[2]); // fast, slow, fast, slow
  SearchOptions heuristic;
  heuristic.most_orders = 0;
  const auto orders = [&] { return node_orders(small_model(2), cluster, heuristic); };
  EXPECT_THAT(
      orders(),
      ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(0, 2, 1, 3), ElementsAre(1, 3, 0, 2)));
  // One kind in one order.
  cluster = small_cluster(4, 0);
  EXPECT_THAT(orders(), ElementsAre(ElementsAre(0, 1, 2, 3)));
  // From 0 the fastest is 2, from there 1 as good as 3.
  cluster.links = {
      {.first = 0, .second = 1, .bytes_per_s = 1e8}, {.first = 3, .second = 0, .bytes_per_s = 2e8}};
  EXPECT_THAT(orders(), ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(0, 2, 1, 3)));
  cluster.links = {
      {.first = 0, .second = 1, .bytes_per_s = 1e8},
      {.first = 2, .second = 0, .bytes_per_s = 2e8},
      {.first = 0, .second = 3, .bytes_per_s = 3e8},
      {.first = 3, .second = 1, .bytes_per_s = 1e7}};
  EXPECT_THAT(orders(), ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(0, 3, 2, 1)));
  // Networks that differ make links differ.
  cluster.links.clear();
  cluster.nodes[1].inter_bytes_per_s = 1e8;
  EXPECT_THAT(orders(), ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(0, 2, 3, 1)));
  // So do their streams, and network cards of which a node's devices reach a part.
  cluster.nodes[1] = cluster.nodes[0];
  cluster.nodes[1].stream_bytes_per_s = 1e8;
  EXPECT_THAT(orders(), ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(0, 2, 3, 1)));
  cluster.nodes[1] = cluster.nodes[0];
  cluster.nodes[1].network_cards = 4;
  EXPECT_THAT(orders(), ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(0, 2, 3, 1)));
  cluster.nodes[1].network_cards = 2;
  EXPECT_THAT(orders(), ElementsAre(ElementsAre(0, 1, 2, 3)));
}

// Of alike nodes it does not matter which stands where; which one stands at an end does.
TEST(NodeOrders, AreAllOfAFewNodesThatDiffer) {
  auto cluster = small_cluster(3, 0);
  const auto orders = [&] { return node_orders(small_model(2), cluster, {}); };
  EXPECT_THAT(orders(), ElementsAre(ElementsAre(0, 1, 2)));
  cluster.nodes[2].inter_bytes_per_s = 1e8;
  EXPECT_THAT(
      orders(),
      testing::UnorderedElementsAre(
          ElementsAre(0, 1, 2), ElementsAre(0, 2, 1), ElementsAre(2, 0, 1)));
  cluster.links = {{.first = 0, .second = 1, .bytes_per_s = 1e8}};
  EXPECT_EQ(orders().size(), 6U);
  cluster = small_cluster(5, 0);
  cluster.links = {{.first = 0, .second = 1, .bytes_per_s = 1e8}};
  EXPECT_LT(orders().size(), 24U) << "120 orders are too many to try";
}

// A cluster file's order of nodes decides nothing that a few orders can tell.
TEST(NodeOrders, OfTheFileDoNotChangeThePlan) {
  const auto model = small_model(4);
  std::set<double> seconds;
  for (const std::size_t slow : {0U, 1U, 2U}) {
    auto cluster = small_cluster(3, 0);
    cluster.nodes[slow].inter_bytes_per_s = 1e7;
    seconds.insert(search(model, cluster, {}).best.front().cost.seconds);
  }
  EXPECT_EQ(seconds.size(), 1U) << *seconds.begin() << " to " << *seconds.rbegin();
}

TEST(Points, FillTheDevicesAndDivideTheBatch) {
  auto model = small_model(3);
  model.global_batch_size = 12;
  std::vector<std::tuple<int, int, int, int>> found;
  for (const Point& point : points_of(model, small_cluster(2, 0), {})) {
    found.emplace_back(point.pp, point.dp, point.tp, point.microbatch_size);
  }
  std::vector<std::tuple<int, int, int, int>> expected;
  // Three layers have no four stages; layers were measured at degrees 1 and 2.
  for (const auto& [tp, pp, dp] : {std::tuple(1, 1, 4), {1, 2, 2}, {2, 1, 2}, {2, 2, 1}}) {
    for (int mbs = 1; mbs <= 12; ++mbs) {
      if (12 % (dp * mbs) == 0) {
        expected.emplace_back(pp, dp, tp, mbs);
      }
    }
  }
  EXPECT_EQ(found, expected);
}

TEST(Points, MegatronCutsByLayersAndByParameters) {
  auto model = small_model(6);
  model.layers[0].parameters = 4'000'000; // with 5 more layers of one million
  model.global_batch_size = 1;
  auto cluster = small_cluster(1, 0);
  cluster.kinds.pop_back();
  cluster.nodes[0].count = 3;
  std::set<std::vector<int>> cuts;
  for (const Candidate& one : megatron_heuristics(model, cluster, {})) {
    cuts.insert(one.strategy.boundaries);
    EXPECT_EQ(one.node_order, std::vector<int>{0});
  }
  // A third of nine million is in the first layer, two thirds are behind the third.
  EXPECT_EQ(cuts, (std::set<std::vector<int>>{{0, 2, 4, 6}, {0, 1, 3, 6}}));
  // Every stage gets a layer, though the last one holds all parameters.
  for (auto& layer : model.layers) {
    layer.parameters = 0;
  }
  model.layers[5].parameters = 1'000'000;
  cuts.clear();
  for (const Candidate& one : megatron_heuristics(model, cluster, {})) {
    cuts.insert(one.strategy.boundaries);
  }
  EXPECT_EQ(cuts, (std::set<std::vector<int>>{{0, 2, 4, 6}, {0, 4, 5, 6}}));
}

TEST(Savings, AreAllCombinationsOfWhatIsAllowed) {
  auto model = small_model(2);
  model.activation_checkpointing = false;
  auto cluster = small_cluster(1, 0);
  // Recomputation or not; the state whole, divided, or divided with the parameters.
  EXPECT_EQ(savings_of(model, cluster, {}).size(), 2u * 3);
  EXPECT_FALSE(savings_of(model, cluster, {}).front().saves());
  for (auto& kind : cluster.kinds) {
    kind.host_bytes_per_s = 1e12;
  }
  EXPECT_EQ(savings_of(model, cluster, {}).size(), 2u * 3); // nobody said what a host holds
  for (auto& kind : cluster.kinds) {
    kind.host_memory_bytes = 1e12;
  }
  // And activations or the state in the host's memory.
  EXPECT_EQ(savings_of(model, cluster, {}).size(), 2u * 3 * 2 * 2);
  SearchOptions options;
  options.offload_activations = options.offload_optimizer_state = true;
  options.shard_optimizer_state = true; // asked for already
  EXPECT_EQ(savings_of(model, cluster, options).size(), 2u * 2);
  options.shard_parameters = true;
  EXPECT_EQ(savings_of(model, cluster, options).size(), 2u);
  options.compare_schedules = true;
  EXPECT_EQ(savings_of(model, cluster, options).size(), 2u * 2);
  model.activation_checkpointing = true;
  EXPECT_EQ(savings_of(model, cluster, options).size(), 2u);
}

// -- Judgements and tables --

PricedTable table_of(const std::vector<std::pair<std::string, double>>& measured_and_estimated) {
  std::string csv = "pp,dp,tp,mbs,layer_boundaries,measured_s,measured_gib\n";
  for (const auto& [measured, estimated] : measured_and_estimated) {
    csv += "1,4,1,1,[0;4]," + measured + ",\n";
  }
  PricedTable table = price_rows(csv, "s.csv", small_model(4), small_cluster(2, 0));
  for (std::size_t i = 0; i < table.rows.size(); ++i) {
    table.rows[i].cost.seconds = measured_and_estimated[i].second;
  }
  return table;
}

bool every(const PricedRow& /*row*/) {
  return true;
}

TEST(Judgement, QuantilesAreThoseOfElevenRuns) {
  // Errors of 0, 1, ... 10 % in another order.
  std::vector<std::pair<std::string, double>> rows;
  for (const int percent : {3, 10, 0, 7, 1, 9, 4, 2, 8, 6, 5}) {
    rows.emplace_back("1", 1 + percent / 100.0);
  }
  const Judgement verdict = judge(table_of(rows), every);
  EXPECT_NEAR(verdict.median_error, 0.05, 1e-12);
  EXPECT_NEAR(verdict.worst_decile_error, 0.09, 1e-12);
  EXPECT_NEAR(verdict.median_ratio, 1.05, 1e-12);
  EXPECT_EQ(verdict.regret, 0);
  EXPECT_EQ(verdict.memory_error, 0); // none was measured
}

TEST(Judgement, OfEqualEstimatesTheFirstIsPicked) {
  EXPECT_DOUBLE_EQ(judge(table_of({{"3", 1}, {"2", 1}, {"4", 1}}), every).regret, 0.5);
  EXPECT_DOUBLE_EQ(judge(table_of({{"inf", 1}, {"2", 3}}), every).regret, 0);
  EXPECT_EQ(judge(table_of({{"inf", 1}}), every).regret, 0);
  EXPECT_EQ(judge(table_of({}), every).right(), 1);
}

TEST(PriceTable, WritesThePriceAndTheMemoryOfEachRow) {
  const auto model = small_model(4);
  const auto cluster = small_cluster(2, 0);
  const std::string out = price_table(
      "pp,dp,tp,mbs,layer_boundaries,placement, memory_gib\n"
      "2,2,1,2,\" [0;1;4] \",DPT,0\n",
      "s.csv",
      model,
      cluster);
  auto strategy = cost::small_strategy(2, 2, 1, 2, 4, "DPT");
  strategy.boundaries = {0, 1, 4};
  const auto cost = cost::price(model, cluster, strategy);
  char seconds[32];
  char gib[32];
  std::snprintf(seconds, sizeof seconds, "%.6f", cost.seconds);
  std::snprintf(gib, sizeof gib, "%.3f", cost.needed_bytes() / (1024.0 * 1024 * 1024));
  EXPECT_EQ(
      out,
      str("pp,dp,tp,mbs,layer_boundaries,placement, memory_gib,predicted_s\n"
          "2,2,1,2,\" [0;1;4] \",DPT,",
          gib,
          ",",
          seconds,
          "\n"));
}

TEST(PriceTable, ColumnsThatAreLeftOutAreTheModels) {
  const auto cluster = small_cluster(2, 0);
  for (const bool recomputes : {false, true}) {
    auto model = small_model(4, 0, "transformer_layer");
    model.activation_checkpointing = recomputes;
    const std::string head = "pp,dp,tp,mbs,layer_boundaries";
    const auto priced = [&](const std::string& csv) {
      return price_rows(csv, "s.csv", model, cluster).rows.at(0).cost;
    };
    const auto usual = priced(head + "\n1,4,1,1,[0;4]\n");
    EXPECT_EQ(
        usual.seconds,
        priced(head + ",recompute\n1,4,1,1,[0;4]," + (recomputes ? "1\n" : "0\n")).seconds);
    EXPECT_NE(
        usual.seconds,
        priced(head + ",recompute\n1,4,1,1,[0;4]," + (recomputes ? "0\n" : "1\n")).seconds);
    const auto zero = [&](const std::string& stage) {
      return priced(head + ",zero\n1,4,1,1,[0;4]," + stage + "\n").stages[0].memory;
    };
    EXPECT_EQ(zero("0").optimizer, usual.stages[0].memory.optimizer);
    EXPECT_EQ(zero("1").optimizer, usual.stages[0].memory.optimizer / 4);
    EXPECT_EQ(zero("1").weights, usual.stages[0].memory.weights);
    EXPECT_LT(zero("3").weights, usual.stages[0].memory.weights);
  }
}

TEST(PriceTable, WhatIsNoWholeNumberOrNoRunOfLayersIsRefused) {
  const auto refusal = [](const std::string& row) -> std::string {
    try {
      price_table(
          "pp,dp,tp,mbs,layer_boundaries\n" + row + "\n",
          "s.csv",
          small_model(4),
          small_cluster(2, 0));
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(refusal("1,4,1,1,[0;4]"), "accepted");
  EXPECT_THAT(
      refusal("0,4,1,1,[0;4]"), HasSubstr("pp: found \"0\"; write a whole number, 1 or more"));
  EXPECT_THAT(refusal("1.5,4,1,1,[0;4]"), HasSubstr("pp: found \"1.5\""));
  EXPECT_THAT(refusal("1,4,1,1,["), HasSubstr("write numbers as in [0;15;30]"));
  EXPECT_THAT(refusal("1,4,1,1,[0;4"), HasSubstr("write numbers as in"));
  EXPECT_THAT(refusal("1,4,1,1,0;4]"), HasSubstr("write numbers as in"));
  EXPECT_THAT(refusal("1,4,1,1,[0;x]"), HasSubstr("found \"x\""));
  EXPECT_THAT(refusal("1,4,1,1,[1;4]"), HasSubstr("s.csv: line 2"));
  EXPECT_THAT(refusal("2,2,1,1,[0;4;2;4]"), HasSubstr("found 4 numbers; write 3"));
  EXPECT_THAT(refusal("2,2,1,1,[0;5;4]"), HasSubstr("s.csv: line 2"));
}

// -- What a step costs --

TEST(Objective, TheFrontHasNoneThatIsBeaten) {
  auto cluster = small_cluster(1, 1);
  cluster.kinds[0].price_per_hour = 3600;
  cluster.kinds[1].price_per_hour = 7200;
  const auto on = [&](double seconds, int device) {
    Candidate one;
    one.strategy = cost::small_strategy(1, 1, 1, 1, 1);
    one.strategy.device_of_rank = {device};
    one.cost.stages.resize(1);
    one.cost.seconds = seconds;
    one.microbatches = 1;
    return one;
  };
  EXPECT_DOUBLE_EQ(step_costs(on(3, 0), cluster).price, 3);
  EXPECT_DOUBLE_EQ(step_costs(on(3, 2), cluster).price, 6);
  // Fast and dear, slow and cheap; one that is slower than the first and dearer, and copies.
  const auto front = front_of({on(5, 0), on(4, 2), on(4.5, 2), on(5, 0)}, cluster);
  ASSERT_EQ(front.size(), 2u);
  EXPECT_EQ(front[0].cost.seconds, 4);
  EXPECT_EQ(front[1].cost.seconds, 5);
}

} // namespace
} // namespace tessera::planner
