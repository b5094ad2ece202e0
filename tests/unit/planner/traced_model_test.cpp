#include "tessera/planner/traced_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/config/config.h"
#include "tessera/planner/nothing_fits.h"
#include "tessera/planner/runtime_abilities.h"
#include "tessera/planner/search.h"
#include "tessera/planner/to_config.h"

#include "tests/unit/planner/small_trace.h"

namespace tessera::planner {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(TracedModel, BlocksMoveAndWhatSharesParametersStays) {
  ModelTrace model = small_language_model(3);
  EXPECT_THAT(movable_modules(model.graph), ElementsAre(3, 4, 5));
  // A block that holds the embedding's weight stays with it.
  model.graph.modules[4].parameters.push_back(0);
  EXPECT_THAT(movable_modules(model.graph), ElementsAre(3, 5));
  // So does one that is called twice.
  model.graph.modules[3].calls = 2;
  EXPECT_THAT(movable_modules(model.graph), ElementsAre(5));
  // But not one whose own part holds its weight once more.
  model = small_language_model(3);
  graph::Module part = model.graph.modules[4];
  part.path = "h.1.part";
  part.parent = 4;
  model.graph.modules[4].children = {static_cast<int>(model.graph.modules.size())};
  model.graph.modules.push_back(part);
  EXPECT_THAT(movable_modules(model.graph), ElementsAre(3, 4, 5));
  // And one whose weight the model itself holds, beside its modules.
  model = small_language_model(3);
  model.graph.modules[0].parameters = model.graph.modules[4].parameters;
  EXPECT_THAT(movable_modules(model.graph), ElementsAre(3, 5));
}

TEST(TracedModel, SecondsAreThoseOfItsOperators) {
  const auto described = describe_traced(small_language_model(3), measured_cluster(2));
  ASSERT_EQ(described.layers.size(), 4u);
  EXPECT_EQ(described.layers[0].name, "");
  EXPECT_EQ(described.layers[2].name, "h.1");
  EXPECT_EQ(described.layers[0].parameters, 1000);
  EXPECT_EQ(described.layers[1].parameters, 500);
  EXPECT_EQ(described.layers[1].output_elements_per_sample, 100);
  const cost::TracedPart& whole = described.traced()->whole;
  // The home keeps what the embedding, its first operator, and the head keep of a sample.
  EXPECT_DOUBLE_EQ(whole.layers[0].kept_bytes_per_sample, 3 * (1e6 + 2e6));
  EXPECT_DOUBLE_EQ(whole.layers[1].kept_bytes_per_sample, 3 * 4e6);
  const auto seconds = [](const cost::MicrobatchSeconds& all, int size) {
    return all.at("cpu").at(size).forward;
  };
  EXPECT_NEAR(seconds(whole.layers[1].microbatch_seconds, 2), 8e-3, 1e-9);
  // Embedding and head; the head alone runs behind the blocks.
  EXPECT_NEAR(seconds(whole.layers[0].microbatch_seconds, 2), 6e-3, 1e-9);
  EXPECT_NEAR(seconds(whole.tail_seconds, 2), 4e-3, 1e-9);
  EXPECT_EQ(whole.layers[1].kept_bytes_per_sample, 12e6);
  EXPECT_EQ(whole.layers[1].working.of(1), 16e6);
  // Sizes that divide the batch, and no others.
  EXPECT_EQ(whole.tail_seconds.at("cpu").size(), 4u);
}

TEST(TracedModel, GradientsOfWeightsComeLaterWhereTheirProductsLetThem) {
  const auto product = [](graph::OperatorWork& one, double batch) {
    one.name = "aten::linear";
    one.kind = graph::OperatorWork::Kind::kProduct;
    one.count = 1;
    one.rows = 10 * batch;
    one.inner = 100;
    one.columns = 100;
  };
  ModelTrace model = small_language_model(3);
  for (const std::size_t i : {1, 3, 4}) { // two blocks and the head
    product(model.one_sample[i], 1);
    product(model.two_samples[i], 2);
  }
  const auto deferred = [](const ModelTrace& model) {
    const auto described = describe_traced(model, measured_cluster(2));
    const cost::TracedPart& whole = described.traced()->whole;
    std::vector<double> parts;
    for (const cost::TracedLayer& layer : whole.layers) {
      parts.push_back(layer.deferred_seconds.at("cpu").at(2).backward);
    }
    parts.push_back(whole.tail_deferred_seconds.at("cpu").at(2).backward);
    return parts;
  };
  const double half =
      cost::pass_seconds(
          model.two_samples[1], measured_cluster(2).kinds[0].speed, cost::Precision::kFull)
          .backward /
      2;
  ASSERT_GT(half, 0);
  // Nobody waits for the home's first part.
  EXPECT_THAT(deferred(model), ElementsAre(0, half, 0, half, half));
  // Of a weight that the embedding uses too the engine adds the parts.
  ModelTrace tied = model;
  for (auto* work : {&tied.one_sample, &tied.two_samples}) {
    for (std::size_t i = 1; i < 4; ++i) {
      (*work)[i].gradient_bytes += 4000; // the head's gradient, which waits for the embedding's
    }
  }
  EXPECT_THAT(deferred(tied), ElementsAre(0, half, 0, half, 0));
  ModelTrace convolution = model;
  convolution.one_sample[1].name = convolution.two_samples[1].name = "aten::conv2d";
  EXPECT_THAT(deferred(convolution), ElementsAre(0, 0, 0, half, half));
  ModelTrace mesh = model;
  mesh.one_sample[3].name = mesh.two_samples[3].name = "product";
  EXPECT_THAT(deferred(mesh), ElementsAre(0, half, 0, 0, half));
  // Attention's products, of which there are more with more samples, have no weights.
  ModelTrace attention = model;
  attention.two_samples[1].count = 2;
  attention.two_samples[1].rows = 10;
  EXPECT_THAT(deferred(attention), ElementsAre(0, 0, 0, half, half));
}

TEST(TracedModel, GradientsOfMoreElementsThanWereMeasuredAreAddedInProportion) {
  ModelTrace model = small_language_model(3);
  const auto backward = [&] {
    const auto described = describe_traced(model, measured_cluster(2));
    const cost::TracedLayer& layer = described.traced()->whole.layers[1];
    return layer.microbatch_seconds.at("cpu").at(1).backward;
  };
  const auto with = [&](std::int64_t elements) {
    for (graph::Parameter& one : model.graph.parameters) {
      one.elements = elements;
    }
    return backward();
  };
  EXPECT_NEAR(with(8'000'000) - with(2'000'000), 6e-3, 1e-9);
}

TEST(TracedModel, GradientsComeWithTheFirstBackwardOrHaveMemoryOfTheirOwn) {
  const cost::Cluster cluster = measured_cluster(2);
  const auto described = describe_traced(small_language_model(3), cluster);
  cost::Strategy strategy;
  strategy.pp = 2;
  strategy.boundaries = {0, 2, 4};
  strategy.device_of_rank = {0, 1};
  strategy.activation_checkpointing = false;
  const cost::LayerTable table(
      described, cluster, strategy, cost::runtime_constants(cluster, described.precision));
  const auto memory = [&](const cost::StageState& state) { return table.memory(1, 2, state); };
  constexpr double kGradients = 4 * 500;
  // Many microbatches: those of the first are there when most are held.
  EXPECT_EQ(memory({.in_flight = 2, .had_backward = true}).gradients, kGradients);
  // One microbatch: they come as its activations of 12 MB go.
  EXPECT_EQ(memory({.in_flight = 1, .had_backward = false}).gradients, 0);
  // With another microbatch left, its backward is at work beside all gradients: 100 GB of them
  // exceed the 12 MB that the first one kept, and the 16 MB at work stand beside both.
  auto large = described;
  large.layers[1].parameters = 25'000'000'000;
  const cost::LayerTable larger(
      large, cluster, strategy, cost::runtime_constants(cluster, described.precision));
  const auto peak = [&](int in_flight) {
    const cost::StageMemory all =
        larger.memory(1, 2, {.in_flight = in_flight, .had_backward = false});
    return all.gradients + all.activations + all.working;
  };
  EXPECT_EQ(peak(1), 1e11);
  EXPECT_EQ(peak(2), 12e6 + 1e11 + 16e6);
  EXPECT_EQ(peak(3), 2 * 12e6 + 1e11 + 16e6);
  // Those that replicas average lie in buckets that stay.
  EXPECT_EQ(memory({.replicas = true, .had_backward = false}).gradients, kGradients);
  EXPECT_EQ(memory({.in_flight = 2}).activations, 2 * 12e6);
  EXPECT_EQ(memory({.in_flight = 2}).working, 16e6);
}

// A tied head gives its weight a gradient that waits for the embedding's: one for each microbatch
// whose backward is between the two, where the head's activations have gone by then.
TEST(TracedModel, GradientsOfATiedHeadAreHeldUntilTheEmbeddings) {
  const cost::Cluster cluster = measured_cluster(2);
  ModelTrace traced = small_language_model(3);
  const double held = 10e6;
  for (graph::ForwardWork* work : {&traced.one_sample, &traced.two_samples}) {
    for (graph::OperatorWork& one : *work) {
      one.gradient_bytes += held;
    }
    work->front().gradient_bytes += 2 * held; // the embedding's part, and the sum
  }
  const auto described = describe_traced(traced, cluster);
  EXPECT_EQ(described.traced()->whole.held_gradient_bytes, held);
  EXPECT_EQ(described.traced()->whole.layers[1].working.of(2), 2 * 16e6);
  EXPECT_EQ(described.traced()->whole.layers[0].working.of(2), 2 * 4e6 + 3 * held);
  cost::Strategy strategy;
  strategy.pp = 2;
  strategy.boundaries = {0, 2, 4};
  strategy.device_of_rank = {0, 1};
  strategy.activation_checkpointing = false;
  const auto working = [&](int first, int samples, int backwards) {
    strategy.microbatch_size = samples;
    const cost::LayerTable table(
        described, cluster, strategy, cost::runtime_constants(cluster, described.precision));
    return table.memory(first, first + 1, {.in_flight = 3, .backwards = backwards}).working;
  };
  EXPECT_EQ(working(0, 1, 1), 4e6 + 3 * held);
  // The head keeps 6 MB of a sample.
  EXPECT_EQ(working(0, 1, 3), 4e6 + 3 * held + 2 * (held - 6e6));
  EXPECT_EQ(working(0, 2, 3), 2 * 4e6 + 3 * held);
  EXPECT_EQ(working(1, 1, 3), 16e6);
}

TEST(TracedModel, TheOperatorThatNeedsMostDependsOnTheSamples) {
  cost::MostBytes most;
  EXPECT_EQ(most.of(5), 0);
  most.take({10, 0});
  most.take({2, 100});
  most.take({1, 50}); // never the most
  EXPECT_EQ(most.of(1), 102);
  EXPECT_EQ(most.of(12), 124);
  EXPECT_EQ(most.of(13), 130);
  most.take({11, 100}); // always the most
  EXPECT_EQ(most.of(1), 111);
  most.take({-20, 0});
  EXPECT_EQ(most.of(10), 210);
  EXPECT_EQ(cost::MostBytes(cost::SampleBytes{-3, 0}).of(2), 0);
}

TEST(TracedModel, WithoutAPipelineAMicrobatchRunsToItsEnd) {
  cost::Strategy strategy;
  strategy.boundaries = {0, 4};
  for (const auto schedule : {cost::Schedule::kSimple, cost::Schedule::kInterleaved}) {
    strategy.schedule = schedule;
    EXPECT_EQ(cost::in_flight(strategy, 0, 8), 1);
  }
}

TEST(TracedModel, OperatorsThatDependOnTheBatchAreRefused) {
  ModelTrace model = small_language_model(3);
  model.two_samples.resize(1);
  model.two_samples.shrink_to_fit();
  try {
    describe_traced(model, measured_cluster(2));
    FAIL();
  } catch (const PlanError& error) {
    EXPECT_THAT(error.what(), HasSubstr("runs 5 operators, that of two samples 1"));
  }
}

TEST(TracedModel, UnknownDevicesAreRefusedByName) {
  cost::Cluster cluster = measured_cluster(2);
  cluster.kinds[0].speed = {};
  try {
    describe_traced(small_language_model(2), cluster);
    FAIL();
  } catch (const UnmeasuredDevice& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("\"cpu\""), HasSubstr("measure the cluster")));
  }
  cluster.kinds[0].name = "v100";
  EXPECT_NO_THROW(describe_traced(small_language_model(2), cluster));
}

TEST(TracedModel, WhatIsPlannedRuns) {
  const cost::Cluster cluster = measured_cluster(4);
  const auto model = describe_traced(small_language_model(8), cluster);
  SearchOptions options;
  options.runnable_only = true;
  options.simulate = 8;
  options.keep_node_order = true;
  options.constants = cost::runtime_constants(cluster, model.precision);
  const SearchResult result = search(model, cluster, options);
  ASSERT_GT(result.best.size(), 3u);
  bool pipeline = false;
  double before = 0;
  for (const Candidate& one : result.best) {
    EXPECT_GE(one.seconds(), before);
    before = one.seconds();
    ASSERT_FALSE(not_runnable(one, model));
    const auto config = config::parse_config(to_config_json(one, model), "planned");
    config::check_world(config, 4);
    EXPECT_EQ(config.partition.at(""), 0);
    if (one.strategy.pp > 1) {
      pipeline = true;
      EXPECT_EQ(config.partition.at("h.7"), one.strategy.pp - 1);
      EXPECT_EQ(config.effective_active_microbatches(), one.strategy.active_microbatches);
      EXPECT_GE(one.strategy.active_microbatches, one.strategy.pp + 2);
    }
  }
  EXPECT_TRUE(pipeline);
}

// Blocks that also multiply by a weight, and by each other as attention does.
cost::DescribedModel with_products(const cost::Cluster& cluster) {
  ModelTrace traced = small_language_model(8);
  for (auto [work, samples] : {std::pair{&traced.one_sample, 1}, {&traced.two_samples, 2}}) {
    for (std::size_t block = 0; block < 8; ++block) {
      graph::OperatorWork product;
      product.name = "aten::addmm";
      product.kind = graph::OperatorWork::Kind::kProduct;
      product.module = 3 + static_cast<int>(block);
      product.count = 1;
      product.rows = 100 * samples;
      product.inner = product.columns = 100;
      product.elements = 1e4 * samples;
      product.bytes = 4 * product.elements;
      graph::OperatorWork attention = product;
      attention.name = "aten::bmm";
      attention.count = 4 * samples;
      attention.rows = 100;
      graph::OperatorWork mask = product;
      mask.name = "aten::dropout";
      mask.kind = graph::OperatorWork::Kind::kRandom;
      const auto place = work->begin() + 1 + static_cast<std::ptrdiff_t>(4 * block + 1);
      work->insert(place, {product, attention, mask});
    }
  }
  return describe_traced(traced, cluster);
}

// What runs on one device, of so much memory.
struct OnOneDevice {
  cost::Cluster cluster = measured_cluster(1);
  cost::DescribedModel model = with_products(cluster);
  SearchOptions options = {};

  OnOneDevice() {
    // Most of an operator's time is the same for every size, so large microbatches are faster.
    auto& speed = cluster.kinds[0].speed;
    speed.moves = speed.functions = {{1, 1e-2}, {1e9, 2e-2}};
    speed.random = {{1, 3e-2}, {1e9, 6e-2}};
    speed.products["f32"] = {{1, 1e-2}, {1e9, 2e-2}};
    model = with_products(cluster);
    options.runnable_only = true;
    options.save_memory = true;
    options.can_recompute = true;
    options.constants = cost::runtime_constants(cluster, model.precision);
  }

  cost::StrategyCost price(int microbatch, bool recomputes, bool keeps, bool offloads = false) {
    cost::Strategy strategy;
    strategy.microbatch_size = microbatch;
    strategy.boundaries = {0, static_cast<int>(model.layers.size())};
    strategy.device_of_rank = {0};
    strategy.active_microbatches = 3;
    strategy.activation_checkpointing = recomputes;
    strategy.keeps_products = keeps;
    strategy.offload_activations = offloads;
    return cost::price(model, cluster, strategy, options.constants);
  }
  Candidate best_in(double bytes) {
    options.memory_limit_bytes = bytes;
    return search(model, cluster, options).best.front();
  }
};

TEST(Recomputation, KeptProductsAreMemoryForTime) {
  OnOneDevice one;
  const auto none = one.price(2, false, false);
  const auto each = one.price(2, true, false);
  const auto selective = one.price(2, true, true);
  const auto kept = [](const cost::StrategyCost& cost) {
    return cost.stages[0].memory.activations;
  };
  // The products of eight blocks with weights, and the bits of their masks, for the two samples of
  // the microbatch at work.
  EXPECT_NEAR(kept(selective) - kept(each), 8 * 2 * (4e4 + 1e4 / 8), 1);
  EXPECT_LT(kept(selective), kept(none));
  EXPECT_LT(none.seconds, selective.seconds);
  EXPECT_LT(selective.seconds, each.seconds);
  double given = 0;
  for (const auto& layer : one.model.traced()->whole.layers) {
    given += layer.given_seconds.at("cpu").at(2).forward;
  }
  // Of each block a product of at least 0.01 s, and 0.02 s more to draw a mask than to move one.
  EXPECT_GT(given, 8 * 0.03);
  EXPECT_NEAR(each.seconds - selective.seconds, 4 * given, 1e-9);
}

TEST(Recomputation, IsChosenWhereMemoryIsShort) {
  OnOneDevice one;
  const double none = one.price(1, false, false).needed_bytes();
  const double selective = one.price(1, true, true).needed_bytes();
  const double each = one.price(1, true, false).needed_bytes();
  ASSERT_LT(each, selective);
  ASSERT_LT(selective, none);
  const Candidate kept = one.best_in((none + selective) / 2);
  EXPECT_EQ(recomputation_of(kept.strategy), "selective");
  EXPECT_FALSE(not_runnable(kept, one.model));
  const Candidate least = one.best_in((selective + each) / 2);
  EXPECT_EQ(recomputation_of(least.strategy), "each");
  EXPECT_FALSE(to_config(least, one.model).offload_activations);
  // A configuration has no key for it.
  one.options.can_recompute = false;
  EXPECT_THROW(one.best_in((none + selective) / 2), NothingFits);
}

TEST(Recomputation, IsChosenWhereItIsFaster) {
  OnOneDevice one;
  // Without it only one sample fits at a time.
  const double limit = one.price(1, false, false).needed_bytes() * 1.3;
  ASSERT_GT(one.price(2, false, false).needed_bytes(), limit);
  const Candidate fast = one.best_in(limit);
  EXPECT_NE(recomputation_of(fast.strategy), "none");
  EXPECT_GT(fast.strategy.microbatch_size, 1);
  one.options.can_recompute = false;
  const Candidate slow = one.best_in(limit);
  EXPECT_EQ(recomputation_of(slow.strategy), "none");
  EXPECT_LT(fast.seconds(), 0.93 * slow.seconds());
  // With room for all, nothing is computed twice.
  one.options.can_recompute = true;
  EXPECT_EQ(recomputation_of(one.best_in(0).strategy), "none");
}

TEST(Offloading, IsWrittenWhereRecomputationDoesNotSuffice) {
  OnOneDevice one;
  one.model.global_batch_size = 1;
  one.cluster.kinds[0].host_bytes_per_s = 1e9;
  one.cluster.kinds[0].host_memory_bytes = 1e10;
  const auto near = one.price(1, true, false, true);
  const double each = one.price(1, true, false).needed_bytes();
  // Of eight layers' inputs of 400 bytes six are near.
  EXPECT_NEAR(each - near.needed_bytes(), 2 * 400 / one.options.constants.usable_memory_share, 1);
  EXPECT_NEAR(near.stages[0].host_bytes, 8 * 400, 1);
  const double limit = (near.needed_bytes() + each) / 2;
  const Candidate best = one.best_in(limit);
  EXPECT_TRUE(best.strategy.offload_activations);
  EXPECT_EQ(recomputation_of(best.strategy), "each");
  EXPECT_FALSE(not_runnable(best, one.model));
  const auto config = config::parse_config(to_config_json(best, one.model), "planned");
  EXPECT_TRUE(config.offload_activations);
  // Whole forwards the runtime does not offload, and what has no price is not chosen.
  Candidate other = best;
  other.strategy.activation_checkpointing = false;
  EXPECT_TRUE(not_runnable(other, one.model));
  one.cluster.kinds[0].host_bytes_per_s = 0;
  EXPECT_THROW(one.best_in(limit), NothingFits);
}

TEST(RuntimeAbilities, FollowTheConfigurationsKeys) {
  const RuntimeAbilities can = runtime_abilities();
  config::Config config;
  config.tensor_parallel_degree = 2;
  config.ddp = true;
  bool accepted = true;
  try {
    config::validate(config);
  } catch (const ConfigError&) {
    accepted = false;
  }
  EXPECT_EQ(can.tensor_parallelism, accepted);
}

} // namespace
} // namespace tessera::planner
