// Every part of an iteration by hand: sends and their latency, relays, reductions, the optimizer
// step, and what the timeline says of each.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/unit/simulator/bare.h"

namespace tessera::simulator {
namespace {

// Nodes of one device, 1 GB/s between them; constants without losses but this latency.
constexpr double kLatency = 5e-3;

cost::Cluster single_devices(int count) {
  cost::Cluster cluster = small_cluster(count, 0);
  for (cost::Node& node : cluster.nodes) {
    node.count = 1;
  }
  return cluster;
}

SimulationOptions with_latency() {
  SimulationOptions options = bare();
  options.constants.link_latency_seconds = kLatency;
  return options;
}

// Layers of 1 ms forward and 2 ms backward, whose outputs of one sample take so many milliseconds.
cost::DescribedModel sending(const std::vector<double>& milliseconds) {
  auto model = small_model(static_cast<int>(milliseconds.size()));
  for (std::size_t i = 0; i < milliseconds.size(); ++i) {
    model.layers[i].output_elements_per_sample = std::lround(milliseconds[i] * 500'000);
  }
  return model;
}

std::vector<timeline::Event> events_of(
    const SimulationResult& result,
    const std::string& category) {
  std::vector<timeline::Event> events;
  std::copy_if(
      result.timeline.events.begin(),
      result.timeline.events.end(),
      std::back_inserter(events),
      [&](const auto& event) { return event.category == category; });
  return events;
}

// "name of rank, microbatch: start to end in ms, bytes"
std::string text_of(const timeline::Event& event) {
  const auto rounded = [](double us) { return std::lround(us) / 1e3; };
  return str(
      event.name,
      " of ",
      event.rank,
      ", ",
      event.microbatch,
      ": ",
      rounded(event.start_us),
      " to ",
      rounded(event.end_us),
      ", ",
      event.bytes);
}

std::vector<std::string> texts_of(const SimulationResult& result, const std::string& category) {
  std::vector<std::string> texts;
  for (const auto& event : events_of(result, category)) {
    texts.push_back(text_of(event));
  }
  return texts;
}

TEST(Parts, ASendTakesItsBytesAndOneStep) {
  auto model = sending({1, 0});
  model.global_batch_size = 1;
  const auto result =
      simulate(model, single_devices(2), small_strategy(2, 1, 1, 1, 2), with_latency());
  // 1 forward, 1 + 5 send, 1 forward, 2 backward, 1 + 5 back, 2 backward.
  EXPECT_NEAR(result.iteration_seconds, 18e-3, 1e-9);
  EXPECT_THAT(
      texts_of(result, "comm"),
      testing::ElementsAre(
          "activation of 0, 0: 1 to 7, 1000000", "gradient of 1, 0: 10 to 16, 1000000"));
  EXPECT_THAT(
      texts_of(result, "forward"),
      testing::ElementsAre("stage 0 of 0, 0: 0 to 1, 0", "stage 1 of 1, 0: 7 to 8, 0"));
  EXPECT_THAT(
      texts_of(result, "backward"),
      testing::ElementsAre("stage 1 of 1, 0: 8 to 10, 0", "stage 0 of 0, 0: 16 to 18, 0"));
  for (const auto& event : result.timeline.events) {
    EXPECT_EQ(event.lane, event.category == "comm" ? 1 : 0);
    EXPECT_EQ(event.step, 0);
    EXPECT_EQ(event.pp_rank, event.rank);
  }
  EXPECT_EQ(result.timeline.world_size, 2);
  EXPECT_EQ(result.tasks, 4);
  // Each rank works 3 ms of 18.
  EXPECT_NEAR(result.bubble_share, 1 - 3.0 / 18, 1e-9);
}

TEST(Parts, AMessageTakesTheLatencyOfItsLink) {
  auto model = sending({1, 0});
  model.global_batch_size = 1;
  auto cluster = single_devices(2);
  cluster.nodes[0].latency_seconds = 1; // of messages inside of it, of which there are none
  cluster.links = {{.first = 1, .second = 0, .bytes_per_s = 1e9, .latency_seconds = 2e-3}};
  const auto strategy = small_strategy(2, 1, 1, 1, 2);
  const auto result = simulate(model, cluster, strategy, with_latency());
  EXPECT_THAT(
      texts_of(result, "comm"),
      testing::ElementsAre(
          "activation of 0, 0: 1 to 4, 1000000", "gradient of 1, 0: 7 to 10, 1000000"));
  EXPECT_NEAR(
      cost::price(model, cluster, strategy, with_latency().constants).seconds,
      result.iteration_seconds,
      1e-9);
}

TEST(Parts, WhatGoesBetweenTwoStagesOfAHomeIsRelayed) {
  cost::DescribedModel model = sending({1, 2, 4});
  cost::TracedModel traced;
  model.source = traced;
  model.global_batch_size = 1;
  model.returns_home = true;
  for (std::size_t i = 0; i < model.layers.size(); ++i) {
    cost::TracedLayer seconds;
    seconds.microbatch_seconds["fast"][1] = {1e-3, 2e-3};
    traced.whole.layers.push_back(seconds);
  }
  traced.whole.tail_seconds["fast"][1] = {0.6e-3, 1.2e-3};
  model.source = traced;
  auto cluster = single_devices(3);
  cluster.kinds.pop_back();
  auto strategy = small_strategy(3, 1, 1, 1, 3);
  strategy.activation_checkpointing = false;
  const auto result = simulate(model, cluster, strategy, with_latency());
  // Rank 0 sends 1 ms of bytes to rank 1, forwards 2 ms from there to rank 2, and receives 4 ms; as
  // much goes back. Eight sends have a latency, and so has rank 0 for each of two relays.
  EXPECT_NEAR(
      result.iteration_seconds, 3 * 3e-3 + 2 * (1 + 2 + 2 + 4) * 1e-3 + (8 + 2) * kLatency, 1e-9);
  // A relay takes as long on a host whose cores its ranks share.
  auto shared = cluster;
  for (cost::Node& node : shared.nodes) {
    node.cores = 1;
  }
  EXPECT_NEAR(
      simulate(model, shared, strategy, with_latency()).iteration_seconds,
      result.iteration_seconds,
      1e-9);
  EXPECT_EQ(events_of(result, "comm").size(), 8u);
  const auto forwards = events_of(result, "forward");
  ASSERT_EQ(forwards.size(), 4u);
  EXPECT_NEAR(forwards[0].end_us - forwards[0].start_us, 400, 1e-6); // without its tail
  EXPECT_NEAR(forwards[3].end_us - forwards[3].start_us, 600, 1e-6);
  EXPECT_EQ(forwards[3].rank, 0);
  const auto backwards = events_of(result, "backward");
  ASSERT_EQ(backwards.size(), 4u);
  EXPECT_NEAR(backwards[0].end_us - backwards[0].start_us, 1200, 1e-6);
  EXPECT_EQ(backwards[0].rank, 0);
}

// Three layers on devices of their own; of a backward of 2 ms the last 0.8 are gradients of
// weights, and of the tail's 1.2 ms the last 0.5.
class PutOff : public testing::Test {
 protected:
  PutOff() {
    cost::TracedModel traced;
    for (std::size_t i = 0; i < model_.layers.size(); ++i) {
      cost::TracedLayer layer;
      layer.microbatch_seconds["fast"][1] = {1e-3, 2e-3};
      layer.deferred_seconds["fast"][1] = {0, i > 0 ? 0.8e-3 : 0};
      layer.deferred_bytes_per_sample = i > 0 ? 1e3 : 0;
      traced.whole.layers.push_back(layer);
    }
    traced.whole.tail_seconds["fast"][1] = {0.6e-3, 1.2e-3};
    traced.whole.tail_deferred_seconds["fast"][1] = {0, 0.5e-3};
    model_.source = traced;
    model_.returns_home = true;
    model_.global_batch_size = 1;
    cluster_.kinds.pop_back();
    strategy_.activation_checkpointing = false;
  }

  cost::DescribedModel model_ = sending({0, 0, 0});
  cost::Cluster cluster_ = single_devices(3);
  cost::Strategy strategy_ = small_strategy(3, 1, 1, 1, 3);
};

TEST_F(PutOff, WeightsAreNothingThatOtherRanksWaitFor) {
  const auto result = simulate(model_, cluster_, strategy_, bare());
  // Forwards, the tail's backward up to its answer, those of ranks 2 and 1, and all of layer 0's.
  EXPECT_NEAR(result.iteration_seconds, (3 + 0.7 + 1.2 + 1.2 + 0.8) * 1e-3, 1e-9);
  EXPECT_THAT(
      texts_of(result, "backward"),
      testing::ElementsAre(
          "stage 0 of 0, 0: 3 to 4.2, 0",
          "stage 2 of 2, 0: 3.7 to 5.7, 0",
          "stage 1 of 1, 0: 4.9 to 6.9, 0",
          "stage 0 of 0, 0: 6.1 to 6.9, 0"));
  // All that ranks compute is counted.
  EXPECT_NEAR(result.bubble_share, 1 - 9 / (3 * 6.9), 1e-6);
  const double estimated = cost::price(model_, cluster_, strategy_, bare().constants).seconds;
  EXPECT_NEAR(estimated, result.iteration_seconds, 1e-9);
}

TEST_F(PutOff, SharedCoresComputeThemToo) {
  cost::Cluster one = small_cluster(1, 0);
  one.kinds.pop_back();
  one.nodes[0].count = 3;
  one.nodes[0].cores = 1;
  // No two ranks work at one time but for what is put off, which then takes cores from the others.
  EXPECT_NEAR(simulate(model_, one, strategy_, bare()).iteration_seconds, 9e-3, 1e-9);
  one.nodes[0].cores = 3;
  EXPECT_NEAR(simulate(model_, one, strategy_, bare()).iteration_seconds, 6.9e-3, 1e-9);
}

TEST_F(PutOff, ADeviceHasNextToDoWhenTheyAreComputed) {
  // Two microbatches on two ranks: the second backward of rank 1 waits for the first one's weights.
  model_.layers.resize(2);
  auto traced = *model_.traced();
  traced.whole.layers.resize(2);
  traced.whole.tail_seconds["fast"][1] = {0, 0};
  traced.whole.tail_deferred_seconds["fast"][1] = {0, 0};
  model_.source = traced;
  model_.global_batch_size = 2;
  strategy_ = small_strategy(2, 1, 1, 1, 2);
  strategy_.activation_checkpointing = false;
  strategy_.active_microbatches = 2;
  cluster_.nodes.pop_back();
  const auto result = simulate(model_, cluster_, strategy_, bare());
  std::vector<std::string> of_rank_1;
  for (const std::string& text : texts_of(result, "backward")) {
    if (text.find("stage 1") == 0) {
      of_rank_1.push_back(text);
    }
  }
  EXPECT_THAT(
      of_rank_1, testing::ElementsAre("stage 1 of 1, 0: 3 to 5, 0", "stage 1 of 1, 1: 5 to 7, 0"));
}

TEST_F(PutOff, RecomputedLayersPutOffWhatTheirMemoryHolds) {
  strategy_.activation_checkpointing = true;
  auto traced = *model_.traced();
  for (std::size_t i = 1; i < traced.whole.layers.size(); ++i) {
    model_.layers[i].output_elements_per_sample = 0; // what a recomputed layer keeps
  }
  model_.source = traced;
  const auto result = simulate(model_, cluster_, strategy_, bare());
  // Forwards, the tail's backward up to its answer, and of the others also a second forward.
  EXPECT_NEAR(result.iteration_seconds, (3 + 0.7 + 3 + 3 + 0.8) * 1e-3, 1e-9);
}

// Four replicas of 2 million parameters: 8 MB over a ring of four in 12 ms and six steps of 1 ms.
class FourReplicas : public testing::Test {
 protected:
  FourReplicas() {
    options_.constants.link_latency_seconds = 1e-3;
    options_.constants.tree_bandwidth_share = 1e-9; // rings alone
    // 2 million x 1,500 bytes at 0.75 TB/s.
    options_.constants.optimizer_traffic_bytes = 1500;
    options_.constants.gradient_bucket_bytes = 1e12;
  }

  SimulationResult run() {
    return simulate(model_, cluster_, strategy_, options_);
  }

  static constexpr double kComputed = 4 * 2 * 3e-3; // four microbatches of two layers
  static constexpr double kReduced = 18e-3;
  static constexpr double kStep = 4e-3;

  cost::DescribedModel model_ = small_model(2);
  cost::Cluster cluster_ = single_devices(4);
  cost::Strategy strategy_ = small_strategy(1, 4, 1, 1, 2);
  SimulationOptions options_ = bare();
};

TEST_F(FourReplicas, ReduceTheirGradientsThenStep) {
  const auto result = run();
  EXPECT_NEAR(result.iteration_seconds, kComputed + kReduced + kStep, 1e-9);
  std::vector<std::string> reductions;
  std::vector<std::string> steps;
  for (int rank = 0; rank < 4; ++rank) {
    reductions.push_back(str("all_reduce rdp of ", rank, ", -1: 24 to 42, 8000000"));
    steps.push_back(str("step of ", rank, ", -1: 42 to 46, 0"));
  }
  EXPECT_EQ(texts_of(result, "comm"), reductions);
  EXPECT_EQ(texts_of(result, "optimizer"), steps);
  EXPECT_NEAR(result.bubble_share, 0, 1e-9); // until the last backward
}

TEST_F(FourReplicas, WithADividedStateHalfOfTheWayFollowsTheStep) {
  strategy_.shard_optimizer_state = true;
  EXPECT_NEAR(run().iteration_seconds, kComputed + kReduced + kStep / 4, 1e-9);
  strategy_.overlap_gradients = true;
  const auto result = run();
  EXPECT_NEAR(result.iteration_seconds, kComputed + kReduced + kStep / 4, 1e-9);
  const auto events = texts_of(result, "comm");
  ASSERT_EQ(events.size(), 8u);
  EXPECT_EQ(events[0], "all_reduce rdp of 0, -1: 24 to 33, 8000000");
  EXPECT_EQ(events[7], "broadcast of 3, -1: 34 to 43, 8000000");
}

TEST_F(FourReplicas, TakeWhatWasMeasured) {
  cluster_.collectives = {{"all_reduce", 4, 4, 8e6, 50e-3, {}}};
  EXPECT_NEAR(run().iteration_seconds, kComputed + 50e-3 + kStep, 1e-9);
  strategy_.overlap_gradients = strategy_.shard_optimizer_state = true;
  EXPECT_NEAR(run().iteration_seconds, kComputed + 50e-3 + kStep / 4, 1e-9);
  // Measured on other nodes of an equal number it bounds the ring from below.
  cluster_ = single_devices(5);
  cluster_.collectives = {{"all_reduce", 4, 4, 8e6, 50e-3, {1, 2, 3, 4}}};
  cluster_.nodes.pop_back();
  cluster_.nodes[0].inter_bytes_per_s = 1e9 / 8;
  strategy_.overlap_gradients = strategy_.shard_optimizer_state = false;
  EXPECT_NEAR(run().iteration_seconds, kComputed + 8 * 12e-3 + 6e-3 + kStep, 1e-9);
}

TEST_F(FourReplicas, ReduceBucketsOneAfterTheOther) {
  strategy_.overlap_gradients = true;
  options_.constants.gradient_bucket_bytes = 2e6;
  // Four buckets of 3 ms, each followed by steps of 6 ms that the next does not wait for. The
  // backward of 4 ms fills one every millisecond, the first at 21.
  EXPECT_NEAR(run().iteration_seconds, 21e-3 + 4 * 3e-3 + 6e-3 + kStep, 1e-9);
}

TEST(Parts, SharedParametersAreReducedOverTheirStagesBehindAllElse) {
  auto model = sending({0, 0, 0, 0});
  model.layers[3].parameters = 0;
  model.layers[3].shares_parameters_with = "layer.0";
  model.global_batch_size = 1;
  const auto cluster = single_devices(2);
  const auto result = simulate(model, cluster, small_strategy(2, 1, 1, 1, 4), bare());
  // 12 ms of a microbatch, then a million gradients in 4 ms.
  EXPECT_NEAR(result.iteration_seconds, 16e-3, 1e-9);
  EXPECT_THAT(
      texts_of(result, "comm"),
      testing::IsSupersetOf(
          {"all_reduce shared of 0, -1: 12 to 16, 4000000",
           "all_reduce shared of 1, -1: 12 to 16, 4000000"}));
  // A rank that holds both layers has nothing to send.
  auto turns = small_strategy(2, 1, 1, 1, 4);
  turns.stages_per_rank = 2;
  turns.active_microbatches = 2;
  turns.boundaries = {0, 1, 2, 3, 4};
  model.layers[3].shares_parameters_with = "layer.1";
  EXPECT_NEAR(simulate(model, cluster, turns, bare()).iteration_seconds, 12e-3, 1e-9);
  model.layers[3].shares_parameters_with = "layer.2";
  EXPECT_NEAR(simulate(model, cluster, turns, bare()).iteration_seconds, 16e-3, 1e-9);
  model.layers[3].shares_parameters_with = "layer.0";
  EXPECT_NEAR(simulate(model, cluster, turns, bare()).iteration_seconds, 16e-3, 1e-9);
}

TEST(Parts, TensorParallelRanksSendSideBySide) {
  auto model = sending({1, 0});
  model.global_batch_size = 1;
  model.layers[0].kind = "transformer_layer"; // whose measured times are the same at degree 2
  auto cluster = small_cluster(2, 0);
  SimulationOptions options = bare();
  const auto sent = [&](const char* letters) {
    const auto strategy = small_strategy(2, 1, 2, 1, 2, letters);
    const auto result = simulate(model, cluster, strategy, options);
    const auto events = events_of(result, "comm");
    EXPECT_EQ(events.size(), 4u); // both ranks, there and back
    EXPECT_EQ(events[1].rank, letters[0] == 'P' ? 1 : 2); // by devices, as a run numbers them
    return (events[0].end_us - events[0].start_us) * 1e-6;
  };
  EXPECT_NEAR(sent("PDT"), 2e-3, 1e-9); // two streams of 1 MB over one network
  EXPECT_NEAR(sent("TPD"), 1e-4, 1e-9); // each inside its node, with 10 GB/s
  cluster.nodes[1].stream_bytes_per_s = 0.25e9;
  EXPECT_NEAR(sent("PDT"), 4e-3, 1e-9); // a stream's own bound
  options.constants.link_efficiency = 0.5;
  EXPECT_NEAR(sent("PDT"), 8e-3, 1e-9);
  cluster.nodes[1].stream_bytes_per_s = 0;
  cluster.links = {{.first = 1, .second = 0, .bytes_per_s = 2e8}};
  EXPECT_NEAR(sent("PDT"), 20e-3, 1e-9); // both over the link of the pair
  options = bare(); // on one node each device has a link of its own
  cluster = small_cluster(1, 0);
  cluster.nodes[0].count = 4;
  EXPECT_NEAR(sent("PDT"), 1e-4, 1e-9);
}

TEST(Parts, AGroupWaitsForTheSlowestOfItsRanks) {
  auto model = sending({0});
  model.global_batch_size = 16;
  model.layers[0].kind = "transformer_layer";
  SimulationOptions options = bare();
  options.keep_events = false;
  const auto cluster = small_cluster(1, 0);
  auto strategy = small_strategy(1, 1, 2, 1, 1);
  strategy.activation_checkpointing = false;
  const double even = simulate(model, cluster, strategy, options).iteration_seconds;
  EXPECT_NEAR(even, 16 * 3e-3, 1e-9);
  options.slow_devices = {{1, 1.5}};
  EXPECT_NEAR(simulate(model, cluster, strategy, options).iteration_seconds, 1.5 * even, 1e-9);
  // The larger of two lognormal factors of mean 1 has the mean 2 Phi(sigma / sqrt(2)).
  options.slow_devices.clear();
  options.jitter = 0.2;
  double mean = 0;
  constexpr int kDraws = 400;
  for (int i = 0; i < kDraws; ++i) {
    options.seed = static_cast<std::uint64_t>(i);
    mean += simulate(model, cluster, strategy, options).iteration_seconds / kDraws;
  }
  const double phi = 0.5 * std::erfc(-0.2 / 2); // of sigma / sqrt(2), by erfc(-x / sqrt(2))
  EXPECT_NEAR(mean / even, 2 * phi, 0.006);
}

TEST(Parts, EveryRankHoldsWhatTheEstimateSays) {
  auto model = small_model(4, 0, "transformer_layer");
  model.layers[0].parameters = 5'000'000;
  const auto cluster = small_cluster(4, 0);
  const auto strategy = small_strategy(2, 2, 2, 1, 4);
  SimulationOptions options;
  const auto result = simulate(model, cluster, strategy, options);
  const auto estimate = cost::price(model, cluster, strategy);
  ASSERT_EQ(result.memory_high_water.size(), 8u);
  ASSERT_EQ(result.needed_bytes.size(), 8u);
  for (std::size_t rank = 0; rank < 8; ++rank) {
    const cost::StageCost& stage = estimate.stages[rank / 4];
    EXPECT_NEAR(result.memory_high_water[rank], stage.memory.total(), 1) << rank;
    EXPECT_NEAR(result.needed_bytes[rank], stage.needed_bytes, 1) << rank;
  }
  // While its first task runs a stage holds one microbatch; behind it nothing is at work.
  const auto& first = result.memory_over_time[0];
  const cost::LayerTable table(model, cluster, strategy, options.constants);
  const cost::StageMemory one =
      table.memory(0, 2, cost::stage_state(strategy, 1, 4, cost::HostPace::kLevel));
  EXPECT_NEAR(first[0].bytes, one.total(), 1);
  EXPECT_NEAR(first[1].bytes, one.total() - one.working - one.logits, 1);
  EXPECT_EQ(first[0].time_us, 0);
  EXPECT_NEAR(first[1].time_us, events_of(result, "forward")[0].end_us, 1e-6);
}

TEST(Parts, WithoutAPipelineAMicrobatchRunsToItsEnd) {
  const auto model = small_model(2, 0, "transformer_layer");
  auto strategy = small_strategy(1, 1, 1, 4, 2);
  strategy.active_microbatches = 3;
  const auto result = simulate(model, single_devices(1), strategy, bare());
  std::vector<timeline::Event> tasks = events_of(result, "forward");
  const auto backwards = events_of(result, "backward");
  tasks.insert(tasks.end(), backwards.begin(), backwards.end());
  std::sort(tasks.begin(), tasks.end(), [](const auto& a, const auto& b) {
    return a.start_us < b.start_us;
  });
  ASSERT_EQ(tasks.size(), 8u);
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(tasks[at(i)].category, i % 2 == 0 ? "forward" : "backward") << i;
    EXPECT_EQ(tasks[at(i)].microbatch, i / 2);
  }
  const auto estimate = cost::price(model, single_devices(1), strategy, bare().constants);
  EXPECT_NEAR(result.memory_high_water[0], estimate.stages[0].memory.total(), 1);
}

TEST(Parts, DevicesHaveTheLinksOfTheirOwnNode) {
  auto model = sending({1, 0, 1, 0});
  model.global_batch_size = 1;
  auto cluster = small_cluster(2, 0);
  cluster.nodes[1].intra_bytes_per_s = 2e9;
  // Stages 0 and 1 on the first node, 2 and 3 on the second.
  const auto result = simulate(model, cluster, small_strategy(4, 1, 1, 1, 4), bare());
  std::vector<long> microseconds;
  for (const auto& event : events_of(result, "comm")) {
    microseconds.push_back(std::lround(event.end_us - event.start_us));
  }
  EXPECT_THAT(microseconds, testing::ElementsAre(100, 0, 500, 500, 0, 100));
}

// Two ranks of a model of sizes, whose gathered activations stay while the host is ahead.
TEST(Parts, MemoryKnowsWhetherTheHostIsAhead) {
  auto model = small_model(1, 0, "transformer_layer");
  model.layers[0].parameters = 12 * 16 * 16;
  model.layers[0].output_elements_per_sample = 16 * 8;
  model.source =
      cost::SizedModel{.sequence_length = 8, .num_attention_heads = 4, .vocabulary_size = 32};
  auto cluster = small_cluster(1, 0);
  auto strategy = small_strategy(1, 1, 2, 1, 1);
  strategy.activation_checkpointing = false;
  strategy.schedule = cost::Schedule::kSimple;
  for (auto& kind : cluster.kinds) {
    kind.product_flops_per_s = 1e12;
  }
  std::vector<double> held;
  for (const double launch : {0.0, 1.0}) {
    cluster.kinds[0].launch_seconds = launch;
    held.push_back(simulate(model, cluster, strategy, {}).memory_high_water[0]);
    EXPECT_NEAR(held.back(), cost::price(model, cluster, strategy).stages[0].memory.total(), 1e-6);
  }
  // Without a pipeline one microbatch is at work, whose gathered activations a host that is behind
  // has given back.
  EXPECT_NEAR(held[0] - held[1], 2 * 2 * 16 * 8.0, 1e-6);
}

TEST(Parts, OfARankWithTwoStagesOneIsAtWork) {
  auto model = small_model(4, 0, "transformer_layer");
  model.layers[2].output_elements_per_sample = 50'000;
  model.global_batch_size = 1;
  auto strategy = small_strategy(2, 1, 1, 1, 4);
  strategy.stages_per_rank = 2;
  strategy.active_microbatches = 1;
  strategy.boundaries = {0, 1, 2, 3, 4};
  const auto result = simulate(model, single_devices(2), strategy, {});
  const cost::LayerTable table(model, single_devices(2), strategy, {});
  const auto of_stage = [&](int stage, int held) {
    return table.memory(
        stage, stage + 1, cost::stage_state(strategy, held, 1, cost::HostPace::kLevel));
  };
  const auto& first = result.memory_over_time[0];
  // The first forward of rank 0, and that of its second stage, which holds the larger layer.
  EXPECT_NEAR(
      first[0].bytes, of_stage(0, 1).total() + of_stage(2, 0).total() - of_stage(2, 0).working, 1);
  EXPECT_NEAR(
      first[2].bytes, of_stage(0, 1).total() - of_stage(0, 1).working + of_stage(2, 1).total(), 1);
}

} // namespace
} // namespace tessera::simulator
