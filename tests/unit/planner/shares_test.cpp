// Plans whose replicas take unlike numbers of samples: their price, their search, what is written.
#include "tessera/planner/shares.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/base/index.h"
#include "tessera/config/config.h"
#include "tessera/cost/staged_cost.h"
#include "tessera/planner/candidate_text.h"
#include "tessera/planner/candidates_json.h"
#include "tessera/planner/nothing_fits.h"
#include "tessera/planner/planned_config.h"
#include "tessera/planner/runtime_abilities.h"
#include "tessera/planner/search.h"
#include "tessera/planner/to_config.h"
#include "tessera/simulator/simulate.h"

#include "tests/unit/cost/small_cases.h"

namespace tessera::planner {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Nodes of one device each, the first ones twice as fast as the others.
cost::Cluster single_devices(int fast, int slow) {
  cost::Cluster cluster = cost::small_cluster(fast, slow);
  for (cost::Node& node : cluster.nodes) {
    node.count = 1;
  }
  return cluster;
}

cost::DescribedModel model_of(int batch, int layers = 4) {
  cost::DescribedModel model = cost::small_model(layers);
  model.global_batch_size = batch;
  model.activation_checkpointing = false;
  return model;
}

cost::Strategy unlike(cost::Strategy strategy, std::vector<int> samples) {
  strategy.microbatch_size = *std::max_element(samples.begin(), samples.end());
  strategy.replica_microbatch = std::move(samples);
  return strategy;
}

SearchOptions runnable() {
  SearchOptions options;
  options.runnable_only = true;
  options.unlike_samples = true;
  options.constants = cost::bare_constants();
  return options;
}

TEST(UnlikeReplicas, ArePricedByTheSlowest) {
  const auto model = model_of(24);
  const auto cluster = single_devices(1, 1);
  const auto constants = cost::bare_constants();
  auto even = cost::small_strategy(1, 2, 1, 12, 4);
  even.activation_checkpointing = false;
  const auto equal = cost::price(model, cluster, even, constants);
  const auto price = [&](int fast, int slow) {
    return cost::price(model, cluster, unlike(even, {fast, slow}), constants);
  };
  // The slow device has 12 samples of 2 of the fast one's: 24, against 16 on both.
  EXPECT_NEAR(price(16, 8).compute_seconds, equal.compute_seconds * 16 / 24, 1e-12);
  EXPECT_NEAR(price(20, 4).compute_seconds, equal.compute_seconds * 20 / 24, 1e-12);
  EXPECT_NEAR(price(4, 20).compute_seconds, equal.compute_seconds * 40 / 24, 1e-12);
  EXPECT_DOUBLE_EQ(price(16, 8).gradient_seconds, equal.gradient_seconds);
  EXPECT_NEAR(price(16, 8).seconds, price(16, 8).compute_seconds + equal.gradient_seconds, 1e-12);
  // Equal numbers are what they are without.
  EXPECT_NEAR(price(12, 12).seconds, equal.seconds, 1e-12);
}

// Another price of the same: stages that divide a microbatch anew, of which there is one here.
TEST(UnlikeReplicas, ArePricedAsOneStageOfItsOwn) {
  const auto model = model_of(24);
  const auto cluster = single_devices(1, 1);
  auto even = cost::small_strategy(1, 2, 1, 3, 4);
  even.activation_checkpointing = false;
  for (const auto& [fast, slow] : {std::pair(4, 2), std::pair(5, 1), std::pair(2, 4)}) {
    const auto strategy = unlike(even, {fast, slow});
    const cost::Constants constants;
    cost::StagedTables tables(model, cluster, constants);
    const auto own = cost::price(cost::staged(strategy, model.global_batch_size), tables);
    EXPECT_NEAR(cost::price(model, cluster, strategy).seconds, own.seconds, 1e-9 * own.seconds)
        << fast;
  }
}

TEST(UnlikeReplicas, HaveTheMemoryOfTheFullest) {
  auto model = model_of(24);
  for (cost::Layer& layer : model.layers) {
    layer.output_elements_per_sample = 10'000'000;
  }
  const auto cluster = single_devices(1, 1);
  auto even = cost::small_strategy(1, 2, 1, 12, 4);
  even.activation_checkpointing = false;
  const auto kept = [&](const cost::Strategy& strategy) {
    return cost::price(model, cluster, strategy, cost::bare_constants());
  };
  const auto of_size = [&](int samples) {
    const cost::LayerTable table(
        model,
        cluster,
        [&] {
          auto one = even;
          one.microbatch_size = samples;
          return one;
        }(),
        cost::bare_constants());
    return table.memory(0, 4, {}).total();
  };
  // The slow device has half the memory of the fast one, and the driver takes as much of both.
  const auto most = kept(unlike(even, {22, 2})).stages[0];
  EXPECT_DOUBLE_EQ(most.memory.total(), of_size(22));
  EXPECT_DOUBLE_EQ(most.device_bytes, 16e9);
  const auto alike = kept(unlike(even, {13, 11})).stages[0];
  EXPECT_DOUBLE_EQ(alike.memory.total(), of_size(11));
  EXPECT_DOUBLE_EQ(alike.device_bytes, 8e9);
}

// A node's cores compute what its ranks have, each its own share.
TEST(UnlikeReplicas, ShareCores) {
  const auto model = model_of(24);
  auto cluster = cost::small_cluster(1, 1); // two devices a node
  cluster.nodes[0].cores = 1;
  auto even = cost::small_strategy(1, 4, 1, 6, 4);
  even.activation_checkpointing = false;
  const auto constants = cost::bare_constants();
  const auto price = [&](std::vector<int> samples) {
    return cost::price(model, cluster, unlike(even, std::move(samples)), constants);
  };
  const double one = price({6, 6, 6, 6}).compute_seconds / 12; // of a sample on a fast device
  // 12 samples on one core, beside 6 of twice the work on a device each.
  EXPECT_NEAR(price({8, 4, 6, 6}).compute_seconds, 12 * one, 1e-12);
  EXPECT_NEAR(price({8, 4, 6, 6}).shared_cores_seconds, 0, 1e-12);
  EXPECT_NEAR(price({10, 6, 4, 4}).compute_seconds, 10 * one, 1e-12);
  EXPECT_NEAR(price({10, 6, 4, 4}).shared_cores_seconds, 6 * one, 1e-12);
}

// Each replica of a simulation without gradients runs as it would alone.
TEST(UnlikeReplicas, AreSimulatedEachWithItsSamples) {
  auto model = model_of(24, 6);
  for (cost::Layer& layer : model.layers) {
    layer.parameters = 0;
    layer.output_elements_per_sample = 300'000;
  }
  const auto constants = cost::bare_constants();
  const auto cluster = single_devices(2, 2);
  auto even = cost::small_strategy(2, 2, 1, 3, 6, "DPT"); // a replica of fast, one of slow devices
  even.activation_checkpointing = false;
  const auto seconds = [&](const cost::DescribedModel& batch,
                           const cost::Cluster& of,
                           const cost::Strategy& strategy) {
    const auto result = simulator::simulate(batch, of, strategy, {.constants = constants});
    const auto once =
        simulator::simulate(batch, of, strategy, {.keep_events = false, .constants = constants});
    EXPECT_DOUBLE_EQ(once.iteration_seconds, result.iteration_seconds);
    return result.iteration_seconds;
  };
  for (const auto& [fast, slow] : {std::pair(4, 2), std::pair(5, 1), std::pair(2, 4)}) {
    double slowest = 0;
    for (const bool first : {true, false}) {
      auto alone = cost::small_strategy(2, 1, 1, first ? fast : slow, 6);
      alone.activation_checkpointing = false;
      auto batch = model;
      batch.global_batch_size = 4 * alone.microbatch_size;
      slowest = std::max(
          slowest, seconds(batch, first ? single_devices(2, 0) : single_devices(0, 2), alone));
    }
    EXPECT_NEAR(seconds(model, cluster, unlike(even, {fast, slow})), slowest, 1e-12) << fast;
  }
}

// Among all divisions, of devices whose speeds are drawn.
TEST(UnlikeReplicas, TakeTheBestDivision) {
  std::mt19937 random(5);
  for (int round = 0; round < 50; ++round) {
    const int replicas = 2 + static_cast<int>(random() % 2);
    cost::Cluster cluster = single_devices(1, 0);
    cluster.kinds.clear();
    cluster.nodes.resize(1);
    auto model = model_of(static_cast<int>(replicas * (2 + random() % 4)), 1);
    auto& times = model.measured().layers[0].forward_seconds_per_sample;
    times.clear();
    std::vector<double> speeds;
    const cost::Node node = cluster.nodes[0];
    cluster.nodes.clear();
    for (int d = 0; d < replicas; ++d) {
      const std::string name = "kind" + std::to_string(d);
      speeds.push_back(1e-3 * (1 + static_cast<double>(random() % 50) / 10));
      times[name] = {{1, speeds.back()}};
      cluster.kinds.push_back({.name = name, .memory_bytes = 16e9, .memory_bytes_per_s = 1e12});
      cluster.nodes.push_back(node);
      cluster.nodes.back().kind = d;
    }
    double best = std::numeric_limits<double>::infinity();
    const std::function<void(int, int, double)> divide = [&](int d, int left, double longest) {
      if (d == replicas) {
        best = left == 0 ? std::min(best, longest) : best;
        return;
      }
      for (int samples = 1; samples <= left; ++samples) {
        divide(d + 1, left - samples, std::max(longest, samples * speeds[at(d)]));
      }
    };
    divide(0, model.global_batch_size, 0);
    SearchOptions options = runnable();
    options.keep = 50;
    double found = std::numeric_limits<double>::infinity();
    for (const Candidate& one : search(model, cluster, options).best) {
      if (one.strategy.dp == replicas && one.microbatches == 1) {
        found = std::min(found, one.cost.compute_seconds);
      }
    }
    EXPECT_NEAR(found, 3 * best, 1e-12) << round; // a backward is two forwards
  }
}

// Of many microbatches a pipeline passes on one in the time of its slowest stage, however quick the
// other is.
TEST(UnlikeReplicas, OfPipelinesFollowTheirSlowestStages) {
  constexpr int kMicrobatches = 16;
  auto model = model_of(18 * kMicrobatches, 2);
  auto cluster = single_devices(4, 0);
  cluster.kinds.clear();
  for (auto& layer : model.measured().layers) {
    layer.forward_seconds_per_sample.clear();
  }
  for (const int milliseconds : {1, 5, 4, 4}) {
    const std::string name = "kind" + std::to_string(cluster.kinds.size());
    cluster.nodes[cluster.kinds.size()].kind = static_cast<int>(cluster.kinds.size());
    cluster.kinds.push_back({.name = name, .memory_bytes = 16e9, .memory_bytes_per_s = 1e12});
    for (auto& layer : model.measured().layers) {
      layer.forward_seconds_per_sample[name] = {{1, 1e-3 * milliseconds}};
    }
  }
  SearchOptions options = runnable();
  options.keep_node_order = true;
  options.keep = 100;
  std::vector<Candidate> found;
  add_unlike_replicas(model, cluster, options, found);
  const auto pipelines = std::find_if(found.begin(), found.end(), [](const Candidate& one) {
    return one.strategy.pp == 2 &&
           one.strategy.replica_microbatch[0] + one.strategy.replica_microbatch[1] == 18;
  });
  ASSERT_NE(pipelines, found.end());
  // Each pair has a device of 4 or 5 ms: ten samples and eight, in 40 ms; a backward is two
  // forwards.
  EXPECT_NEAR(pipelines->cost.compute_seconds, kMicrobatches * 3 * 40e-3, 1e-9);
}

TEST(UnlikeReplicas, AreFoundWrittenAndRun) {
  const auto model = model_of(24, 1); // which leaves replicas alone
  const auto cluster = single_devices(1, 1);
  const SearchOptions options = runnable();
  const SearchResult result = search(model, cluster, options);
  const Candidate& best = result.best.front();
  ASSERT_THAT(best.strategy.replica_microbatch, testing::SizeIs(2));
  EXPECT_EQ(best.strategy.replica_microbatch[0], 2 * best.strategy.replica_microbatch[1]);
  SearchOptions equal = options;
  equal.unlike_samples = false;
  EXPECT_NEAR(
      best.cost.compute_seconds,
      search(model, cluster, equal).best.front().cost.compute_seconds * 16 / 24,
      1e-12);
  EXPECT_TRUE(runtime_abilities().unlike_samples);
  EXPECT_EQ(not_runnable(best, model), std::nullopt);
  const config::Config config = to_config(best, model);
  // Node 0 is fast, whatever order the ranks were placed in.
  std::vector<int> wanted = {16, 8};
  if (best.node_order.front() != 0) {
    std::swap(wanted[0], wanted[1]);
  }
  EXPECT_EQ(config.replica_samples, wanted);
  EXPECT_NO_THROW(config::check_world(config, 2));
  EXPECT_THAT(to_config_json(best, model), HasSubstr("\"replica_samples\""));
  EXPECT_THAT(planned_keys_said(config), testing::Contains("replica_samples"));
  EXPECT_THAT(headline(best.strategy), HasSubstr("microbatch sizes "));
  EXPECT_THAT(summary(result, model), HasSubstr("of equal replicas"));
  EXPECT_THAT(to_json(result, model, cluster), HasSubstr("\"replica_microbatch\""));
}

// A device that does not hold half of the batch takes what it holds.
TEST(UnlikeReplicas, FollowMemory) {
  auto model = model_of(16, 1);
  model.layers[0].output_elements_per_sample = 200'000'000;
  auto cluster = single_devices(2, 0);
  cluster.kinds.push_back(cluster.kinds[0]);
  cluster.kinds.back().name = "fast and small";
  cluster.nodes[1].kind = 2;
  model.measured().layers[0].forward_seconds_per_sample["fast and small"] =
      model.measured().layers[0].forward_seconds_per_sample["fast"];
  cluster.kinds[0].memory_bytes = 400e9;
  cluster.kinds[2].memory_bytes = 8e9;
  SearchOptions options = runnable();
  options.unlike_samples = false;
  const auto one_microbatch = [](const SearchResult& result) {
    return std::find_if(result.best.begin(), result.best.end(), [](const Candidate& one) {
      return one.microbatches == 1;
    });
  };
  options.keep = 50;
  const SearchResult equal = search(model, cluster, options);
  ASSERT_EQ(one_microbatch(equal), equal.best.end());
  // With a limit that leaves no equal strategy.
  cluster.kinds[2].memory_bytes = 5e9;
  options.save_memory = false;
  options.unlike_samples = true;
  std::vector<Candidate> found;
  add_unlike_replicas(model, cluster, options, found);
  for (const Candidate& one : found) {
    EXPECT_TRUE(one.cost.fits());
  }
  const auto widest =
      std::max_element(found.begin(), found.end(), [](const auto& a, const auto& b) {
        return a.strategy.microbatch_size < b.strategy.microbatch_size;
      });
  ASSERT_NE(widest, found.end());
  EXPECT_GT(
      widest->strategy.microbatch_size,
      *std::min_element(
          widest->strategy.replica_microbatch.begin(), widest->strategy.replica_microbatch.end()));
}

// Where a network stalls, no activations that ranks gathered are held, and devices need no room.
TEST(UnlikeReplicas, HoldWhatThePaceOfTheirHostsLeaves) {
  auto model = model_of(24, 2);
  for (cost::Layer& layer : model.layers) {
    layer.kind = "transformer_layer";
    layer.parameters = 12 * 256 * 256;
    layer.output_elements_per_sample = 256 * 64;
  }
  model.source =
      cost::SizedModel{.sequence_length = 64, .num_attention_heads = 2, .vocabulary_size = 32};
  auto cluster = cost::small_cluster(2, 2);
  cluster.stalling_share = 0.9;
  cluster.kinds[0].product_flops_per_s = 2e12;
  cluster.kinds[1].product_flops_per_s = 1e12;
  cluster.kinds[1].memory_bytes = cluster.kinds[0].memory_bytes;
  SearchOptions options;
  options.unlike_samples = true;
  options.schedule = cost::Schedule::kSimple; // all microbatches are held
  options.tensor_degree = 2;
  options.keep = 100;
  options.constants.context_bytes = 0;
  const auto found = [&](const std::function<bool(const Candidate&)>& asked) {
    std::vector<Candidate> list;
    add_unlike_replicas(model, cluster, options, list);
    const auto one = std::find_if(list.begin(), list.end(), asked);
    return one == list.end() ? std::optional<Candidate>() : *one;
  };
  const auto wanted = found([](const Candidate& one) {
    return one.strategy.pp == 2 && one.cost.stages[0].in_flight > 2;
  });
  ASSERT_TRUE(wanted);
  for (cost::DeviceKind& kind : cluster.kinds) {
    kind.memory_bytes = wanted->cost.needed_bytes() * (1 + 1e-9);
  }
  EXPECT_TRUE(found([&](const Candidate& one) {
    return one.strategy.pp == 2 &&
           one.strategy.replica_microbatch == wanted->strategy.replica_microbatch;
  }));
}

TEST(UnlikeReplicas, AreNotLookedForOnAlikeDevices) {
  const auto model = model_of(24);
  std::vector<Candidate> found;
  add_unlike_replicas(model, single_devices(2, 0), runnable(), found);
  EXPECT_TRUE(found.empty());
  SearchOptions not_asked = runnable();
  not_asked.unlike_samples = false;
  add_unlike_replicas(model, single_devices(1, 1), not_asked, found);
  EXPECT_TRUE(found.empty());
  SearchOptions baseline = runnable();
  baseline.method = Method::kMegatron;
  add_unlike_replicas(model, single_devices(1, 1), baseline, found);
  EXPECT_TRUE(found.empty());
}

TEST(UnlikeReplicas, AreValidated) {
  const auto model = model_of(24);
  const auto cluster = single_devices(1, 1);
  const auto message = [&](const cost::Strategy& strategy) -> std::string {
    try {
      cost::price(model, cluster, strategy);
      return "no error";
    } catch (const ConfigError& error) {
      return error.what();
    }
  };
  const auto even = cost::small_strategy(1, 2, 1, 12, 4);
  EXPECT_THAT(
      message(unlike(even, {16, 4, 4})),
      HasSubstr("found microbatches of 16+4+4 samples with mbs 16; write"));
  EXPECT_THAT(message(unlike(even, {24, 0})), HasSubstr("1 or more samples"));
  EXPECT_THAT(message(unlike(even, {5, 6})), HasSubstr("11 samples together do not divide"));
  EXPECT_EQ(message(unlike(even, {5, 3})), "no error");
}

} // namespace
} // namespace tessera::planner
