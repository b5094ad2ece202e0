// What a cluster's figures must be, with the figure that was found in the unit in which it is
// written, and what a cluster says of its links, latencies and collectives.
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/cost/data_sheets.h"
#include "tessera/cost/group_place.h"
#include "tessera/cost/links.h"
#include "tessera/cost/strategy_cost.h"

#include "tests/unit/cost/small_cases.h"

namespace tessera::cost {
namespace {

using testing::HasSubstr;

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;

template <typename Change>
std::string refusal(const Change& change) {
  Cluster cluster = small_cluster(2, 1);
  change(cluster);
  try {
    validate(cluster);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ClusterChecks, NameTheFigureInItsUnit) {
  EXPECT_EQ(refusal([](Cluster&) {}), "accepted");
  EXPECT_THAT(
      refusal([](Cluster& c) { c.kinds[1].memory_bytes = -3 * kGib; }),
      HasSubstr("devices.slow.memory_gib: found -3;"));
  EXPECT_THAT(
      refusal([](Cluster& c) { c.nodes[2].count = 0; }), HasSubstr("nodes[2].count: found 0;"));
  for (const int kind : {-1, 2}) {
    EXPECT_THAT(
        refusal([&](Cluster& c) { c.nodes[1].kind = kind; }),
        HasSubstr("nodes[1].device: is not one of devices"));
  }
  EXPECT_THAT(
      refusal([](Cluster& c) { c.nodes[0].intra_bytes_per_s = -1e9; }),
      HasSubstr("nodes[0].intra_node_gbit_per_s: found -8; the 2 devices"));
  EXPECT_THAT(
      refusal([](Cluster& c) { c.nodes[0].inter_bytes_per_s = -2e9; }),
      HasSubstr("nodes[0].inter_node_gbit_per_s: found -16;"));
  EXPECT_THAT(
      refusal([](Cluster& c) { c.nodes[0].cores = -0.5; }),
      HasSubstr("nodes[0].cores: found -0.5;"));
  EXPECT_THAT(
      refusal([](Cluster& c) { c.nodes[0].cores = std::nan(""); }), HasSubstr("nodes[0].cores"));
  EXPECT_THAT(
      refusal([](Cluster& c) { c.stalling_group_nodes = -4; }),
      HasSubstr("stalling_group_nodes: found -4; write"));
  // What nobody uses need not be known.
  EXPECT_EQ(
      refusal([](Cluster& c) {
        c.nodes[0].count = 1;
        c.nodes[0].intra_bytes_per_s = 0;
      }),
      "accepted");
  EXPECT_EQ(
      refusal([](Cluster& c) {
        c.nodes.resize(1);
        c.nodes[0].inter_bytes_per_s = 0;
      }),
      "accepted");
}

TEST(ClusterChecks, LinksAreBetweenTwoNodesThatAreThere) {
  const auto link = [](int first, int second, double bytes_per_s = 1e8, double latency = 0) {
    return refusal([&](Cluster& c) {
      c.links = {{0, 1, 1e8}, {first, second, bytes_per_s, latency}};
    });
  };
  EXPECT_EQ(link(0, 2), "accepted");
  EXPECT_EQ(link(2, 0), "accepted");
  for (const auto& [first, second] : {std::pair(-1, 0), {0, -1}, {3, 0}, {0, 3}, {1, 1}}) {
    EXPECT_THAT(
        link(first, second), HasSubstr(str("links[1].nodes: found ", first, " and ", second)))
        << first << " " << second;
    EXPECT_THAT(link(first, second), HasSubstr("two different nodes, 0 to 2"));
  }
  EXPECT_THAT(link(0, 2, -1e9), HasSubstr("links[1].gbit_per_s: found -8; nodes 0 and 2"));
  EXPECT_THAT(link(0, 2, 1e8, -2e-6), HasSubstr("links[1].latency_us: found -2;"));
  EXPECT_THAT(link(0, 2, 1e8, std::nan("")), HasSubstr("links[1].latency_us"));
}

TEST(ClusterChecks, MeasuredTimesAreOfSomething) {
  const auto collective = [](const CollectiveTime& one) {
    return refusal([&](Cluster& c) { c.collectives = {one}; });
  };
  EXPECT_EQ(collective({"all_reduce", 2, 1, 1, 1, {}}), "accepted");
  EXPECT_EQ(collective({"all_reduce", 3, 3, 1, 1, {0, 1, 2}}), "accepted");
  EXPECT_THAT(collective({"all_reduce", 1, 1, 7, 1, {}}), HasSubstr("of 1 ranks, 7 bytes in 1 s"));
  EXPECT_THAT(collective({"all_reduce", 2, 0, 1, 1, {}}), HasSubstr("write 2 ranks or more"));
  EXPECT_THAT(collective({"all_reduce", 2, 1, 0, 1, {}}), HasSubstr("2 ranks, 0 bytes"));
  EXPECT_THAT(collective({"all_reduce", 2, 1, 1, 0, {}}), HasSubstr("in 0 s"));
  EXPECT_THAT(collective({"all_reduce", 2, 2, 1, 1, {-1, 1}}), HasSubstr("found [-1, 1]"));
  EXPECT_EQ(collective({"all_to_all", 2, 1, 1, 1, {}}), "accepted");
  EXPECT_THAT(
      collective({"allreduce", 2, 1, 1, 1, {}}),
      HasSubstr("operation: found \"allreduce\"; write all_reduce, all_gather"));
  EXPECT_THAT(
      collective({"all_reduce", 2, 3, 1, 1, {}}),
      HasSubstr("of 2 ranks on 3 nodes; write at least as many ranks"));
}

TEST(ClusterChecks, HostsAndWattsAreToldApart) {
  EXPECT_EQ(refusal([](Cluster& c) { c.nodes[0].host = "a"; }), "accepted"); // others have no name
  EXPECT_THAT(
      refusal([](Cluster& c) { c.nodes[0].host = c.nodes[2].host = "a"; }),
      HasSubstr("nodes[2].host: found \"a\", the host of nodes[0]; name each host once"));
  const auto watts = [](double watts, double idle) {
    return refusal([&](Cluster& c) {
      c.kinds[0].watts = watts;
      c.kinds[0].idle_watts = idle;
    });
  };
  EXPECT_EQ(watts(300, 300), "accepted");
  EXPECT_EQ(watts(0, 30), "accepted");
  EXPECT_THAT(
      watts(300, 301),
      HasSubstr("devices.fast.idle_watts: found 301; write at most its watts, 300"));
}

TEST(ClusterChecks, MeasuredSeriesAscendAndBelongTogether) {
  const auto series = [](const auto& change) {
    return refusal([&](Cluster& c) {
      DeviceSpeed& speed = c.kinds[0].speed;
      speed.products["f32"] = {{1, 1}, {2, 1}};
      speed.moves = speed.functions = speed.random = {{1, 1}, {2, 1}};
      change(speed);
    });
  };
  EXPECT_EQ(series([](DeviceSpeed&) {}), "accepted");
  for (std::vector<MeasuredPoint> DeviceSpeed::*one :
       {&DeviceSpeed::moves, &DeviceSpeed::functions, &DeviceSpeed::random}) {
    EXPECT_THAT(series([&](DeviceSpeed& s) { (s.*one).clear(); }), HasSubstr("belong together"));
    EXPECT_THAT(series([&](DeviceSpeed& s) { (s.*one)[1].size = 1; }), HasSubstr("found [1, 1]"));
    EXPECT_THAT(series([&](DeviceSpeed& s) { (s.*one)[0].size = 0; }), HasSubstr("found [0, 1]"));
    EXPECT_THAT(
        series([&](DeviceSpeed& s) { (s.*one)[0].seconds = 0; }), HasSubstr("found [1, 0]"));
    EXPECT_THAT(
        series([&](DeviceSpeed& s) { (s.*one)[0].backward_seconds = -1; }),
        HasSubstr("ascending sizes"));
  }
  EXPECT_THAT(series([](DeviceSpeed& s) { s.products.clear(); }), HasSubstr("belong together"));
  EXPECT_THAT(
      series([](DeviceSpeed& s) { s.products["f32"][0].seconds = -1; }),
      HasSubstr("devices.fast.product_seconds.f32: found"));
  EXPECT_THAT(
      series([](DeviceSpeed& s) {
        s.batched_products["bf16"] = {{1, -1}};
      }),
      HasSubstr("batched_product_seconds.bf16"));
  EXPECT_THAT(
      series([](DeviceSpeed& s) {
        s.operators["gelu"] = {{1, -1}};
      }),
      HasSubstr("operator_seconds.gelu"));
  EXPECT_THAT(series([](DeviceSpeed& s) { s.weights = {{1, -1}}; }), HasSubstr("weight_seconds"));
  // One series alone.
  EXPECT_THAT(
      refusal([](Cluster& c) {
        c.kinds[0].speed.random = {{1, 1}};
      }),
      HasSubstr("belong together"));
  EXPECT_THAT(
      refusal([](Cluster& c) {
        c.kinds[0].speed.functions = {{1, 1}};
      }),
      HasSubstr("belong together"));
}

TEST(ClusterChecks, APartHasBetweenOneAndAllNodes) {
  Cluster cluster = small_cluster(3, 0);
  cluster.links = {{0, 1, 1e8}, {2, 0, 2e8}};
  cluster.collectives = {
      {"all_reduce", 2, 2, 1, 1, {0, 1}},
      {"all_reduce", 2, 2, 1, 2, {0, 2}},
      {"all_reduce", 2, 2, 1, 3, {}},
      {"all_reduce", 3, 3, 1, 4, {}}};
  const Cluster part = cluster.first_nodes(2);
  ASSERT_EQ(part.links.size(), 1u);
  EXPECT_EQ(part.links[0].bytes_per_s, 1e8);
  ASSERT_EQ(part.collectives.size(), 2u);
  EXPECT_EQ(part.collectives[0].seconds, 1);
  EXPECT_EQ(part.collectives[1].seconds, 3);
  EXPECT_EQ(cluster.first_nodes(3).collectives.size(), 4u);
  EXPECT_EQ(cluster.first_nodes(1).nodes.size(), 1u);
  EXPECT_THROW(cluster.first_nodes(0), ConfigError);
  EXPECT_THROW(cluster.first_nodes(4), ConfigError);
}

TEST(Cluster, SaysTheLongestLatencyAndTheNarrowestWay) {
  Cluster cluster = small_cluster(2, 1);
  EXPECT_EQ(cluster.latency_seconds(), 0);
  cluster.nodes[1].latency_seconds = 3e-6;
  EXPECT_EQ(cluster.latency_seconds(), 3e-6);
  cluster.links = {{0, 2, 1e8, 7e-6}, {0, 1, 2e8, 5e-6}};
  EXPECT_EQ(cluster.latency_seconds(), 7e-6);
  cluster.nodes[1].inter_bytes_per_s = 3e8;
  EXPECT_EQ(cluster.between(1, 2), 3e8);
  EXPECT_EQ(cluster.between(2, 1), 3e8);
  EXPECT_EQ(cluster.between(2, 0), 1e8);
  EXPECT_EQ(cluster.between(1, 0), 2e8);
  EXPECT_EQ(stream_bytes_per_s(cluster.nodes[1]), 3e8);
  cluster.nodes[1].stream_bytes_per_s = 1e8;
  EXPECT_EQ(stream_bytes_per_s(cluster.nodes[1]), 1e8);
  cluster.nodes[1].stream_bytes_per_s = 1e9; // no more than the network
  EXPECT_EQ(stream_bytes_per_s(cluster.nodes[1]), 3e8);
}

TEST(NodeLinks, ArePairsWhoseFirstLinkIsBelowTheNetworks) {
  Cluster cluster = small_cluster(3, 0);
  cluster.links = {{1, 0, 1e8}, {0, 1, 5e7}, {1, 2, 1e9}};
  const NodeLinks links(cluster);
  EXPECT_EQ(links.size(), 1);
  ASSERT_EQ(links.between(0, 1).size(), 1u);
  EXPECT_EQ(links.between(0, 1)[0].link, 0);
  EXPECT_EQ(links.bytes_per_s(0), 1e8);
  EXPECT_TRUE(links.between(0, 2).empty()); // nobody described it
  EXPECT_TRUE(links.between(2, 1).empty()); // as fast as the networks
  EXPECT_EQ(links.among({0, 1, 2}), std::vector<int>{0});
  EXPECT_TRUE(links.among({0, 2}).empty());
  // Of two networks the slower one bounds the pair, so a link between the two speeds is none.
  cluster.nodes[1].inter_bytes_per_s = 5e8;
  cluster.links = {{1, 2, 7e8}};
  EXPECT_EQ(NodeLinks(cluster).size(), 0);
}

TEST(Cluster, ACollectiveOfFewRanksSpansNoMoreNodesThanRanks) {
  Cluster cluster = small_cluster(4, 0);
  cluster.collectives = {
      {"all_reduce", 2, 2, 100, 2, {}},
      {"all_reduce", 2, 2, 10, 1, {}},
      {"all_gather", 2, 2, 10, 5, {}}};
  // Sizes that were written in any order are interpolated in order.
  EXPECT_NEAR(cluster.collective("all_reduce", 2, {.count = 4}, 10).seconds, 1, 1e-12);
  EXPECT_NEAR(
      cluster.collective("all_reduce", 2, {.count = 2}, std::sqrt(1000)).seconds,
      std::sqrt(2),
      1e-12);
  EXPECT_NEAR(cluster.collective("all_reduce", 2, {.count = 2}, 200).seconds, 4, 1e-12);
  EXPECT_EQ(cluster.collective("all_reduce", 2, {.count = 1}, 10).seconds, 0);
  EXPECT_EQ(cluster.collective("all_reduce", 4, {.count = 2}, 10).seconds, 0);
}

TEST(DataSheets, FiguresFollowFromTheName) {
  EXPECT_EQ(known_memory_bandwidth("V100"), 900e9);
  EXPECT_EQ(known_memory_bandwidth("cpu"), 0);
  EXPECT_EQ(known_launch_seconds("v100"), 75e-6);
  EXPECT_EQ(known_launch_seconds("A100"), 28e-6);
  EXPECT_EQ(known_launch_seconds("cpu"), 0);
  EXPECT_EQ(known_profiled_bandwidth("T4"), 50e9 / 8);
  EXPECT_EQ(known_profiled_bandwidth("a100"), 0);
  EXPECT_EQ(known_profiled_bandwidth("cpu"), 0);
  DeviceKind kind;
  kind.name = "h100";
  kind.memory_bytes_per_s = 1;
  EXPECT_NEAR(product_flops(kind, Precision::kHalf), 0.59 * 989e12, 1);
  EXPECT_NEAR(product_flops(kind, Precision::kFull), 0.59 * 67e12, 1);
  kind.name = "gh200";
  EXPECT_NEAR(product_flops(kind, Precision::kHalf), 0.61 * 989e12, 1);
  kind.name = "a100_80gb";
  EXPECT_NEAR(product_flops(kind, Precision::kHalf), 0.75 * 312e12, 1);
  kind.memory_bytes_per_s = 0;
  EXPECT_THROW(product_flops(kind, Precision::kHalf), ConfigError);
  kind.product_flops_per_s = 7;
  EXPECT_EQ(product_flops(kind, Precision::kHalf), 7);
}

TEST(DataSheets, SeriesAreAtLeastALaunchAndThenTheirBytes) {
  const DeviceSpeed speed = data_sheet_speed({.name = "a100"}); // 1,555 GB/s, 19.5 and 312 TFLOP/s
  const auto last = [](const std::vector<MeasuredPoint>& points) { return points.back(); };
  for (const auto* points : {&speed.moves, &speed.functions, &speed.random}) {
    EXPECT_EQ(points->front().size, 1024);
    EXPECT_EQ(points->front().seconds, 10e-6);
    EXPECT_EQ(last(*points).size, 1 << 26);
    EXPECT_EQ(points->size(), 9u); // times four
  }
  const double elements = 1 << 26;
  EXPECT_NEAR(last(speed.moves).seconds, elements * 12 / (0.75 * 1555e9), 1e-12);
  EXPECT_NEAR(last(speed.functions).seconds, elements * 8 / (0.75 * 1555e9), 1e-12);
  EXPECT_NEAR(last(speed.random).seconds, elements * 9 / (0.75 * 1555e9), 1e-12);
  const auto& products = speed.products.at("f32");
  EXPECT_EQ(products.front().size, 64);
  EXPECT_EQ(products.front().seconds, 10e-6);
  EXPECT_EQ(products.size(), 8u); // times two
  EXPECT_EQ(products.back().size, 8192);
  EXPECT_NEAR(products.back().seconds, 2 * std::pow(8192.0, 3) / (0.75 * 19.5e12), 1e-9);
}

// -- What placements have --

Constants latencies() {
  Constants constants = bare_constants();
  constants.link_latency_seconds = 1e-3;
  constants.device_latency_seconds = 1e-5;
  return constants;
}

TEST(PlacedGroups, StepAsTheSlowestOfTheirNodes) {
  Cluster cluster = small_cluster(2, 0);
  const auto step = [&](const char* letters) {
    return place(small_strategy(1, 2, 2, 1, 1, letters), cluster, latencies())
        .stages[0]
        .tensor_step;
  };
  // Nobody measured steps between nodes.
  EXPECT_EQ(step("PDT").inside, 1e-3);
  cluster.nodes[0].network_latency_seconds = 2e-4;
  EXPECT_EQ(step("PDT").inside, 1e-3);
  cluster.nodes[1].network_latency_seconds = 3e-4;
  EXPECT_EQ(step("PDT").inside, 1e-5);
  EXPECT_EQ(step("TPD").between, 3e-4);
}

TEST(PlacedGroups, RingsShareTheNetworkOfTheirNodes) {
  const Cluster cluster = small_cluster(2, 0);
  const auto tensor = [&](const char* letters) {
    return place(small_strategy(1, 2, 2, 1, 1, letters), cluster, latencies()).stages[0];
  };
  EXPECT_EQ(tensor("PDT").tensor_bytes_per_s, 10e9);
  EXPECT_EQ(tensor("TPD").tensor_bytes_per_s, 0.5e9); // two rings
  EXPECT_EQ(tensor("TPD").tensor_nodes, (std::vector<Span>{{2, {}}}));
  EXPECT_EQ(tensor("PDT").tensor_nodes, (std::vector<Span>{{1, {}}}));
}

TEST(PlacedStages, SendToTheNextAndHome) {
  Cluster cluster = small_cluster(2, 1);
  cluster.nodes[1].inter_bytes_per_s = 6e8;
  const PlacementLinks links = place(small_strategy(3, 2, 1, 1, 3), cluster, latencies());
  ASSERT_EQ(links.stages.size(), 3u);
  // Two flows over each network.
  EXPECT_EQ(links.stages[0].next_bytes_per_s, 3e8);
  EXPECT_EQ(links.stages[1].next_bytes_per_s, 3e8);
  EXPECT_TRUE(std::isinf(links.stages[2].next_bytes_per_s));
  EXPECT_TRUE(std::isinf(links.stages[0].home_bytes_per_s));
  EXPECT_EQ(links.stages[1].home_bytes_per_s, 3e8);
  EXPECT_EQ(links.stages[2].home_bytes_per_s, 5e8);
  EXPECT_TRUE(links.sends_between_nodes);
  EXPECT_EQ(links.kinds, (std::vector<std::vector<int>>{{0}, {0}, {1}}));
  EXPECT_EQ(links.pipelines, (std::vector<std::vector<int>>{{0, 0, 1}}));
  EXPECT_FALSE(
      place(small_strategy(2, 1, 1, 1, 2), small_cluster(1, 0), latencies()).sends_between_nodes);
  const auto sent = [&](int stage, bool returns_home) {
    Strategy strategy = small_strategy(3, 2, 1, 1, 3);
    return send_seconds(links, strategy, stage, 3e6, returns_home);
  };
  EXPECT_NEAR(sent(0, false), 10e-3 + 1e-3, 1e-12);
  EXPECT_EQ(sent(2, false), 0);
  EXPECT_NEAR(sent(0, true), 10e-3 + 1e-3, 1e-12);
  EXPECT_NEAR(sent(1, true), 10e-3 + 1e-3 + 6e-3 + 1e-3, 1e-12); // in and out of stage 0
  EXPECT_NEAR(sent(2, true), 6e-3 + 1e-3, 1e-12);
  Strategy fast = small_strategy(3, 2, 1, 1, 3);
  EXPECT_TRUE(has_relays(fast, true));
  EXPECT_FALSE(has_relays(fast, false));
  EXPECT_FALSE(
      has_relays(small_strategy(2, 3, 1, 1, 3), true)); // each is the first one or its only other
  fast.fast_mode = true;
  EXPECT_FALSE(has_relays(fast, true));
  EXPECT_NEAR(send_seconds(links, fast, 1, 3e6, true), 10e-3 + 1e-3, 1e-12); // to stage 2 itself
  EXPECT_NEAR(send_seconds(links, fast, 2, 3e6, true), 6e-3 + 1e-3, 1e-12);
}

TEST(PlacedStages, MessagesTakeTheLatencyOfTheirLink) {
  Cluster cluster = small_cluster(3, 0);
  cluster.nodes[0].latency_seconds = 3e-6;
  cluster.links = {{.first = 2, .second = 0, .bytes_per_s = 1e9, .latency_seconds = 7e-3}};
  Strategy strategy = small_strategy(6, 1, 1, 1, 6);
  const auto next_of = [&](int stage) {
    return place(strategy, cluster, latencies()).stages[at(stage)].next_latency_seconds;
  };
  EXPECT_EQ(next_of(0), 3e-6); // inside of node 0
  EXPECT_EQ(next_of(1), 1e-3); // to node 1, of which nothing is said
  EXPECT_EQ(next_of(2), 1e-3);
  EXPECT_EQ(next_of(5), 0); // nothing is sent
  const PlacementLinks links = place(strategy, cluster, latencies());
  EXPECT_EQ(links.stages[1].home_latency_seconds, 3e-6);
  EXPECT_EQ(links.stages[5].home_latency_seconds, 7e-3);
  EXPECT_NEAR(send_seconds(links, strategy, 5, 1e6, true), 1e-3 + 7e-3, 1e-12);
  EXPECT_NEAR(send_seconds(links, strategy, 0, 1e6, false), 1e-4 + 3e-6, 1e-12);
  // The slowest pair of a stage's replicas counts.
  strategy = small_strategy(2, 2, 1, 1, 6);
  strategy.device_of_rank = {0, 2, 1, 4};
  EXPECT_EQ(next_of(0), 1e-3);
  cluster.links.push_back({.first = 1, .second = 2, .bytes_per_s = 1e9, .latency_seconds = 2e-3});
  EXPECT_EQ(next_of(0), 2e-3);
}

TEST(PlacedStages, StepsInsideOfANodeTakeWhatItsFileSays) {
  Cluster cluster = small_cluster(2, 0);
  const auto step = [&](const NodeSet& nodes) { return step_seconds(nodes, cluster, latencies()); };
  EXPECT_EQ(step({0}).inside, 1e-3);
  cluster.nodes[0].latency_seconds = 4e-6;
  EXPECT_EQ(step({0}).inside, 4e-6);
  EXPECT_EQ(step({0}).between, 1e-3);
  EXPECT_EQ(step({0, 1}).inside, 1e-3); // node 1's
  cluster.nodes[1].network_latency_seconds = 3e-3;
  EXPECT_EQ(step({0, 1}).inside, std::max(4e-6, latencies().device_latency_seconds));
  EXPECT_EQ(step({0, 1}).between, 3e-3);
  cluster.measured = true;
  EXPECT_EQ(step({0}).inside, 1e-3);
}

TEST(PlacedStages, InTurnsTheLastSendsToTheFirst) {
  const Cluster cluster = small_cluster(2, 0);
  Strategy strategy = small_strategy(2, 2, 1, 1, 4);
  strategy.stages_per_rank = 2;
  strategy.boundaries = {0, 1, 2, 3, 4};
  const PlacementLinks links = place(strategy, cluster, latencies());
  EXPECT_EQ(links.stages[1].next_bytes_per_s, 0.5e9);
  EXPECT_NEAR(send_seconds(links, strategy, 1, 1e6, false), 2e-3 + 1e-3, 1e-12);
  EXPECT_NEAR(send_seconds(links, strategy, 2, 1e6, false), 2e-3 + 1e-3, 1e-12);
  EXPECT_EQ(send_seconds(links, strategy, 3, 1e6, false), 0);
}

TEST(ClusterChecks, AShareOfWaitingIsANumberFromZeroOn) {
  Cluster cluster = small_cluster(2, 0);
  for (const double share : {-0.5, std::nan(""), std::numeric_limits<double>::infinity()}) {
    cluster.waiting = {{.ranks = 2, .share = share}};
    EXPECT_THROW(validate(cluster), ConfigError) << share;
  }
  cluster.waiting = {{.ranks = 1, .share = 0.5}};
  EXPECT_THROW(validate(cluster), ConfigError);
  cluster.waiting = {{.ranks = 2, .share = 0}};
  validate(cluster);
}

} // namespace
} // namespace tessera::cost
