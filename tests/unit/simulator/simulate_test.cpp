#include "tessera/simulator/simulate.h"

#include <algorithm>
#include <chrono>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"

#include "tests/unit/simulator/bare.h"

namespace tessera::simulator {
namespace {

TEST(Simulate, OneDeviceRunsItsMicrobatchesOneAfterAnother) {
  const auto model = small_model(3);
  cost::Cluster cluster = small_cluster(1, 0);
  cluster.nodes[0].count = 1;
  const auto result = simulate(model, cluster, small_strategy(1, 1, 1, 4, 3), bare());
  EXPECT_NEAR(result.iteration_seconds, 4 * 4 * 3 * 3e-3, 1e-12);
  EXPECT_NEAR(result.bubble_share, 0, 1e-12);
  EXPECT_EQ(result.timeline.origin, "simulated");
}

TEST(Simulate, EvenPipelinesTakeWhatEquationFiveSays) {
  // Without transfers to speak of and with equal stages, one forward and one
  // backward at a time reach the estimate exactly.
  auto model = small_model(8);
  for (auto& layer : model.layers) {
    layer.output_elements_per_sample = 0;
  }
  const auto cluster = small_cluster(4, 0);
  for (const int pp : {2, 4, 8}) {
    const auto strategy = small_strategy(pp, 8 / pp, 1, 1, 8);
    auto constants = bare_constants();
    constants.gradient_wire_bytes = 1e-9;
    SimulationOptions options;
    options.constants = constants;
    const auto result = simulate(model, cluster, strategy, options);
    const auto estimate = cost::price(model, cluster, strategy, constants);
    EXPECT_NEAR(result.iteration_seconds, estimate.seconds, 1e-9) << pp;
    const double m = strategy.microbatches(16);
    EXPECT_NEAR(result.bubble_share, (pp - 1) / (m + pp - 1), 1e-9) << pp;
    EXPECT_NEAR(timeline::bubble_share(result.timeline), result.bubble_share, 1e-9);
  }
}

TEST(Simulate, IsNearTheEstimateWithTransfersAndUnevenDevices) {
  const auto model = small_model(8, 0.2);
  const auto cluster = small_cluster(2, 2);
  for (const char* letters : {"PDT", "DPT"}) {
    for (const int pp : {1, 2, 4}) {
      const auto strategy = small_strategy(pp, 8 / pp, 1, 1, 8, letters);
      const auto result = simulate(model, cluster, strategy);
      const auto estimate = cost::price(model, cluster, strategy);
      EXPECT_NEAR(result.iteration_seconds / estimate.seconds, 1, 0.15) << letters << pp;
    }
  }
}

TEST(Simulate, NoRankRunsTwoTasksAtOneTime) {
  const auto model = small_model(8, 0.3);
  const auto cluster = small_cluster(2, 2);
  const auto result = simulate(model, cluster, small_strategy(4, 2, 1, 1, 8));
  std::map<int, std::vector<timeline::Event>> tasks;
  for (const auto& event : result.timeline.events) {
    if (event.lane == 0) {
      tasks[event.rank].push_back(event);
    }
  }
  ASSERT_EQ(tasks.size(), 8u);
  for (auto& [rank, events] : tasks) {
    EXPECT_EQ(events.size(), 8u * 2 + 1); // and the optimizer step
    std::sort(events.begin(), events.end(), [](const auto& a, const auto& b) {
      return a.start_us < b.start_us;
    });
    for (std::size_t i = 1; i < events.size(); ++i) {
      EXPECT_GE(events[i].start_us, events[i - 1].end_us - 1e-6);
    }
  }
}

TEST(Simulate, SchedulesHoldWhatTheyAllow) {
  auto model = small_model(4);
  const auto cluster = small_cluster(2, 0);
  auto strategy = small_strategy(4, 1, 1, 1, 4);
  const auto held = [&](cost::Schedule schedule) {
    strategy.schedule = schedule;
    const auto result = simulate(model, cluster, strategy, bare());
    const auto estimate = cost::price(model, cluster, strategy, bare().constants);
    for (int k = 0; k < 4; ++k) {
      EXPECT_LE(
          result.memory_high_water[static_cast<std::size_t>(k)],
          estimate.stages[static_cast<std::size_t>(k)].memory.total() + 1);
    }
    return result.memory_high_water[0];
  };
  const double bytes_of_fixed = held(cost::Schedule::kInterleaved);
  EXPECT_LT(bytes_of_fixed, held(cost::Schedule::kSimple));
  strategy.active_microbatches = 6;
  EXPECT_GT(held(cost::Schedule::kInterleaved), bytes_of_fixed);
}

TEST(Simulate, CustomSchedulesAreObeyed) {
  auto model = small_model(2);
  model.global_batch_size = 2;
  const auto cluster = [] {
    auto one = small_cluster(1, 0);
    return one;
  }();
  auto strategy = small_strategy(2, 1, 1, 1, 2);
  strategy.schedule = cost::Schedule::kCustom;
  auto options = bare();
  options.custom_order = schedule::parse_order("1F 1B 0F 0B");
  const auto result = simulate(model, cluster, strategy, options);
  std::vector<int> order;
  for (const auto& event : result.timeline.events) {
    if (event.rank == 0 && event.category == "forward") {
      order.push_back(event.microbatch);
    }
  }
  EXPECT_THAT(order, testing::ElementsAre(1, 0));
}

TEST(Simulate, SharedNetworksSlowReplicasDown) {
  auto model = small_model(4);
  for (auto& layer : model.layers) {
    layer.output_elements_per_sample = 1'000'000; // 2 ms over the network
  }
  auto cluster = small_cluster(2, 0);
  const auto shared = simulate(model, cluster, small_strategy(2, 2, 1, 1, 4), bare());
  for (auto& node : cluster.nodes) {
    node.inter_bytes_per_s *= 2;
  }
  const auto wide = simulate(model, cluster, small_strategy(2, 2, 1, 1, 4), bare());
  EXPECT_GT(shared.iteration_seconds, wide.iteration_seconds + 3e-3);
}

TEST(Simulate, OverlappedGradientsEndEarlier) {
  const auto model = small_model(8);
  const auto cluster = small_cluster(4, 0);
  auto strategy = small_strategy(4, 2, 1, 1, 8, "DPT");
  const double after = simulate(model, cluster, strategy, bare()).iteration_seconds;
  strategy.overlap_gradients = true;
  EXPECT_LT(simulate(model, cluster, strategy, bare()).iteration_seconds, after - 1e-3);
}

TEST(Simulate, RanksThatShareCoresSlowEachOtherDown) {
  const auto model = small_model(4);
  auto cluster = small_cluster(1, 0);
  const auto replicas = small_strategy(1, 2, 1, 1, 4);
  const double apart = simulate(model, cluster, replicas, bare()).iteration_seconds;
  cluster.nodes[0].cores = 1;
  const auto together = simulate(model, cluster, replicas, bare());
  EXPECT_NEAR(together.iteration_seconds / apart, 2, 0.05);
  // A pipeline keeps the core busy but for nothing: the same work, no bubble.
  const auto pipeline = small_strategy(2, 1, 1, 1, 4);
  EXPECT_NEAR(simulate(model, cluster, pipeline, bare()).iteration_seconds, 16 * 4 * 3e-3, 2e-3);
}

// The seconds between the last backward and the optimizer step.
double gradients_of(const cost::Cluster& cluster, const cost::Strategy& strategy) {
  const auto result = simulate(small_model(2), cluster, strategy, bare());
  double last_backward = 0;
  for (const auto& event : result.timeline.events) {
    last_backward = std::max(last_backward, event.category == "backward" ? event.end_us * 1e-6 : 0);
  }
  return result.iteration_seconds - last_backward;
}

TEST(Simulate, AllReducesSeeTheLinksBetweenTheirNodes) {
  auto cluster = small_cluster(4, 0);
  for (auto& node : cluster.nodes) {
    node.count = 1;
  }
  const auto replicas = small_strategy(1, 4, 1, 1, 2);
  EXPECT_NEAR(gradients_of(cluster, replicas), 2 * 3.0 / 4 * 8e6 / 1e9, 1e-9);
  cluster.links = {{.first = 1, .second = 3, .bytes_per_s = 1e7}};
  EXPECT_NEAR(gradients_of(cluster, replicas), 2 * 3.0 / 4 * 8e6 / 1e7, 1e-9);
  // DPT: the replicas of one stage on nodes 0 and 2, those of the other on nodes 1 and 3.
  const auto stages = small_strategy(2, 2, 1, 1, 2, "DPT");
  EXPECT_NEAR(gradients_of(cluster, stages), 4e6 / 1e7, 1e-9);
  // Measured on nodes 0 and 2 only: longer than their link needs, shorter than 1 and 3 need.
  cluster.collectives = {{"all_reduce", 2, 2, 4e6, 0.1, {0, 2}}};
  EXPECT_NEAR(gradients_of(cluster, stages), 4e6 / 1e7, 1e-9);
  cluster.collectives.push_back({"all_reduce", 2, 2, 4e6, 0.03, {1, 3}});
  EXPECT_NEAR(gradients_of(cluster, stages), 0.1, 1e-9);
}

TEST(Simulate, TensorParallelRanksUseTheCoresOfTheirOwnHosts) {
  const auto model = small_model(2, 0, "transformer_layer");
  auto cluster = small_cluster(2, 0);
  // TPD: one rank of both replicas' groups on either host.
  const auto strategy = small_strategy(1, 2, 2, 1, 2, "TPD");
  auto options = bare();
  options.constants.gradient_wire_bytes = 1e-9;
  const auto seconds = [&] {
    return simulate(model, cluster, strategy, options).iteration_seconds;
  };
  const double apart = seconds();
  for (auto& node : cluster.nodes) {
    node.cores = 2;
  }
  EXPECT_NEAR(seconds(), apart, 1e-6); // a core for every rank
  cluster.nodes[1].cores = 1;
  EXPECT_NEAR(seconds() / apart, 2, 0.02); // two ranks on one core
  EXPECT_NEAR(
      seconds() / cost::price(model, cluster, strategy, options.constants).seconds, 1, 0.02);
}

TEST(Simulate, NothingRunsBesideTheExchangesOfANodesOnlyGroup) {
  auto model = small_model(2, 0, "transformer_layer");
  for (auto& layer : model.measured().layers) {
    for (auto& [kind, degrees] : layer.forward_seconds_per_sample) {
      degrees[4] = degrees[2];
    }
  }
  model.layers[0].output_elements_per_sample = 2'000'000;
  auto cluster = small_cluster(2, 0);
  for (auto& node : cluster.nodes) {
    node.count = 4;
    node.cores = 2;
  }
  const auto prices = [&](const cost::Strategy& strategy) {
    auto part = cluster.first_nodes(strategy.devices() / 4);
    const cost::StrategyCost shared = cost::price(model, part, strategy, bare().constants);
    if (strategy.tp == 4) {
      EXPECT_NEAR(
          shared.seconds / simulate(model, part, strategy, bare()).iteration_seconds, 1, 0.01);
    }
    for (auto& node : part.nodes) {
      node.cores = 0;
    }
    const cost::StrategyCost own = cost::price(model, part, strategy, bare().constants);
    EXPECT_GT(own.tensor_seconds, own.compute_seconds / 10);
    return std::pair(shared, own);
  };
  // Two ranks a core compute twice as long, and exchange as long as before.
  const auto [shared, own] = prices(small_strategy(1, 1, 4, 1, 2));
  EXPECT_NEAR(shared.shared_cores_seconds, own.compute_seconds, 1e-9);
  // Replicas of unlike samples: the larger one needs as much for itself.
  auto unlike = small_strategy(1, 2, 4, 5, 2);
  unlike.replica_microbatch = {3, 5};
  const auto [larger, alone] = prices(unlike);
  EXPECT_NEAR(larger.shared_cores_seconds, alone.compute_seconds, 1e-9);
  // Of two groups on a node one may compute while the other exchanges.
  const auto [both, apart] = prices(small_strategy(1, 2, 2, 1, 2));
  EXPECT_NEAR(both.shared_cores_seconds + apart.tensor_seconds, apart.compute_seconds, 1e-9);
}

// A model whose first layer is the home of embedding and head.
cost::DescribedModel home_model(int layers) {
  cost::DescribedModel model;
  cost::TracedModel traced;
  model.name = "home";
  model.global_batch_size = 8;
  model.returns_home = true;
  for (int i = 0; i < layers; ++i) {
    cost::Layer layer;
    layer.name = i == 0 ? "" : "h." + std::to_string(i - 1);
    layer.kind = "Block";
    model.layers.push_back(layer);
    cost::TracedLayer seconds;
    seconds.microbatch_seconds["fast"][1] = {1e-3, 2e-3};
    traced.whole.layers.push_back(seconds);
  }
  traced.whole.tail_seconds["fast"][1] = {0.6e-3, 1.2e-3};
  model.source = traced;
  return model;
}

TEST(Simulate, AModelThatReturnsHomeEndsOnItsFirstStage) {
  const auto model = home_model(4);
  auto cluster = small_cluster(2, 0);
  cluster.kinds.pop_back();
  auto strategy = small_strategy(4, 1, 1, 1, 4);
  strategy.active_microbatches = 6;
  strategy.activation_checkpointing = false;
  auto options = bare();
  const auto result = simulate(model, cluster, strategy, options);
  // Stage 0 has its layers and the tail, 3 ms in all, for every microbatch.
  EXPECT_GT(result.iteration_seconds, 8 * 3e-3);
  int tails = 0;
  for (const auto& event : result.timeline.events) {
    tails += event.rank == 0 && event.category == "forward" ? 1 : 0;
  }
  EXPECT_EQ(tails, 16); // entry and tail of eight microbatches
  // Alone there is nothing to return from.
  auto alone = small_strategy(1, 4, 1, 1, 4);
  alone.activation_checkpointing = false;
  EXPECT_NEAR(simulate(model, cluster, alone, options).iteration_seconds, 2 * 4 * 3e-3, 1e-9);
}

// Which ranks send how many messages.
std::map<int, int> messages_of(const SimulationResult& result) {
  std::map<int, int> sent;
  for (const auto& event : result.timeline.events) {
    sent[event.rank] += event.category == "comm" ? 1 : 0;
  }
  return sent;
}

TEST(Simulate, InFastModeStagesSendToEachOther) {
  auto model = home_model(4);
  for (auto& layer : model.layers) {
    layer.output_elements_per_sample = 100'000;
  }
  auto cluster = small_cluster(4, 0);
  cluster.kinds.pop_back();
  for (auto& node : cluster.nodes) {
    node.count = 1;
    node.inter_bytes_per_s = 1e8; // 2 ms for a microbatch
  }
  auto strategy = small_strategy(4, 1, 1, 1, 4);
  strategy.active_microbatches = 8;
  strategy.activation_checkpointing = false;
  const auto relayed = simulate(model, cluster, strategy, bare());
  // Rank 0 sends to three others, forward and backward, whatever it received.
  EXPECT_EQ(messages_of(relayed), (std::map<int, int>{{0, 48}, {1, 16}, {2, 16}, {3, 16}}));
  strategy.fast_mode = true;
  const auto direct = simulate(model, cluster, strategy, bare());
  // Each of the edges 0 -> 1 -> 2 -> 3 -> 0 once in each direction.
  EXPECT_EQ(messages_of(direct), (std::map<int, int>{{0, 16}, {1, 16}, {2, 16}, {3, 16}}));
  // What leaves rank 0 takes three times as long as what leaves any rank.
  EXPECT_GT(relayed.iteration_seconds, 8 * 2 * 3 * 2e-3);
  EXPECT_LT(direct.iteration_seconds, 0.7 * relayed.iteration_seconds);

  // One microbatch passes all edges one after the other.
  model.global_batch_size = 1;
  const double computed = 4 * 3e-3;
  EXPECT_NEAR(
      simulate(model, cluster, strategy, bare()).iteration_seconds, computed + 2 * 4 * 2e-3, 1e-9);
}

TEST(Simulate, AThousandDevicesTakeSeconds) {
  auto model = small_model(64);
  model.global_batch_size = 1024;
  const auto cluster = small_cluster(256, 256);
  SimulationOptions options;
  options.keep_events = false;
  const auto start = std::chrono::steady_clock::now();
  const auto result = simulate(model, cluster, small_strategy(16, 64, 1, 1, 64), options);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(result.memory_high_water.size(), 1024u);
  EXPECT_LT(took.count(), 10);
}

} // namespace
} // namespace tessera::simulator
