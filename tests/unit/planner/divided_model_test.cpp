// Models that tensor-parallel ranks divide: what one rank holds, exchanges and is priced with.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/config/config.h"
#include "tessera/cost/layer_rows.h"
#include "tessera/planner/search.h"
#include "tessera/planner/to_config.h"
#include "tessera/planner/traced_model.h"

#include "tests/unit/cost/small_cases.h"
#include "tests/unit/planner/small_trace.h"

namespace tessera::planner {
namespace {

using testing::HasSubstr;

graph::ForwardWork::iterator gather_of(graph::ForwardWork& work) {
  return std::find_if(
      work.begin(), work.end(), [](const auto& one) { return one.name == "all_gather"; });
}

TEST(DividedModel, HoldsWhatOneRankDoes) {
  ModelTrace traced = small_language_model(3);
  traced.divisions.push_back(half_of(traced));
  const auto model = describe_traced(traced, measured_cluster(2));
  ASSERT_EQ(model.traced()->divided.size(), 1u);
  const cost::DividedModel& divided = model.traced()->divided[0];
  EXPECT_EQ(divided.layers[1].parameters, 250);
  EXPECT_EQ(divided.layers[1].output_elements_per_sample, 400 / 4 / 2); // of two samples
  EXPECT_EQ(divided.part.layers[1].whole_parameters, 0);
  EXPECT_EQ(divided.part.layers[0].whole_parameters, 1000);
  // A microbatch of two is one sample of each rank.
  EXPECT_EQ(divided.part.layers[1].microbatch_seconds.at("cpu").count(1), 0u);
  EXPECT_NEAR(
      divided.part.layers[1].microbatch_seconds.at("cpu").at(2).forward,
      model.traced()->whole.layers[1].microbatch_seconds.at("cpu").at(1).forward,
      1e-12);
  const cost::PassCollectives& exchanged = divided.part.layers[1].collectives.at(4);
  ASSERT_EQ(exchanged.forward.size(), 2u);
  EXPECT_EQ(exchanged.forward[0].operation, "all_gather");
  EXPECT_EQ(exchanged.forward[0].bytes, 800); // two samples of 400 bytes
  // The adjoint of a gather reduces what was gathered, and the other way round.
  ASSERT_EQ(exchanged.backward.size(), 2u);
  EXPECT_EQ(exchanged.backward[0].operation, "reduce_scatter");
  EXPECT_EQ(exchanged.backward[0].bytes, 1600);
  EXPECT_EQ(exchanged.backward[1].operation, "all_gather");
  EXPECT_EQ(exchanged.backward[1].bytes, 800);
  EXPECT_TRUE(divided.part.tail_collectives.at(4).forward.empty());
}

TEST(DividedModel, CountsCollectivesThatAreAlike) {
  ModelTrace traced = small_language_model(3);
  traced.divisions.push_back(half_of(traced));
  DivisionTrace& division = traced.divisions[0];
  for (graph::ForwardWork* work : {&division.least, &division.twice}) {
    const auto gather = gather_of(*work);
    graph::OperatorWork again = *gather;
    graph::OperatorWork of_four = *gather;
    of_four.ranks = 4;
    work->insert(gather, {again, of_four});
  }
  const auto model = describe_traced(traced, measured_cluster(2));
  const auto& forward = model.traced()->divided[0].part.layers[1].collectives.at(2).forward;
  int of_two = 0;
  int of_four = 0;
  for (const cost::TensorCollective& one : forward) {
    if (one.operation == "all_gather") {
      (one.ranks == 2 ? of_two : of_four) += one.times;
      EXPECT_EQ(one.times, one.ranks == 2 ? 2 : 1);
    }
  }
  EXPECT_EQ(of_two, 2);
  EXPECT_EQ(of_four, 1);
}

TEST(DividedModel, PanelsOfAProductAreBroadcastsThatItsBackwardHasTwice) {
  ModelTrace traced = small_language_model(3);
  traced.divisions.push_back(half_of(traced));
  DivisionTrace& division = traced.divisions[0];
  for (graph::ForwardWork* work : {&division.least, &division.twice}) {
    const auto gather = gather_of(*work);
    gather->name = "panel";
    gather->count = 3;
  }
  const auto model = describe_traced(traced, measured_cluster(2));
  const cost::PassCollectives& exchanged =
      model.traced()->divided[0].part.layers[1].collectives.at(2);
  const auto is_panels = [](const cost::TensorCollective& one) { return one.panels == 3; };
  for (const auto* pass : {&exchanged.forward, &exchanged.backward}) {
    const auto panels = std::find_if(pass->begin(), pass->end(), is_panels);
    ASSERT_NE(panels, pass->end());
    EXPECT_EQ(panels->operation, "broadcast");
    EXPECT_EQ(panels->times, pass == &exchanged.forward ? 1 : 2);
  }
}

TEST(DividedModel, KeepsTheBitsOfItsMasks) {
  ModelTrace traced = small_language_model(3);
  traced.divisions.push_back(half_of(traced));
  DivisionTrace& division = traced.divisions[0];
  const auto mask = [](double elements) {
    graph::OperatorWork one;
    one.name = "aten::bernoulli_";
    one.kind = graph::OperatorWork::Kind::kRandom;
    one.module = 3;
    one.elements = elements;
    return one;
  };
  // The home's operators stand around those of the blocks.
  division.least.insert(division.least.begin() + 1, mask(8000));
  division.twice.insert(division.twice.begin() + 1, mask(16'000));
  const auto model = describe_traced(traced, measured_cluster(2));
  const cost::DividedModel& divided = model.traced()->divided[0];
  ASSERT_EQ(division.samples, 2);
  EXPECT_EQ(divided.part.layers[1].given_bytes_per_sample, 8000 / 8 / 2);
  EXPECT_EQ(divided.part.layers[2].given_bytes_per_sample, 0);
}

// Each block has two products, a function between them, and a sum behind the last exchange;
// `returned`: the second one is what the block returns.
DivisionTrace two_products_of(const ModelTrace& whole, bool returned) {
  DivisionTrace division = half_of(whole);
  const auto rewritten = [&](const graph::ForwardWork& work, double batch) {
    graph::ForwardWork result;
    graph::OperatorWork sum;
    for (const graph::OperatorWork& one : work) {
      if (division.graph.modules[static_cast<std::size_t>(one.module)].type != "Block") {
        result.push_back(one);
        continue;
      }
      if (one.kind == graph::OperatorWork::Kind::kCollective) {
        result.push_back(one);
        if (one.name == "reduce_scatter") {
          result.push_back(sum);
        }
        continue;
      }
      sum = one;
      graph::OperatorWork product = one;
      product.name = "aten::linear";
      product.kind = graph::OperatorWork::Kind::kProduct;
      product.count = 1;
      product.rows = 1000 * batch;
      product.inner = product.columns = 100;
      graph::OperatorWork scatter = *gather_of(division.least);
      scatter.name = "reduce_scatter";
      scatter.module = one.module;
      scatter.bytes = 100 * batch;
      graph::OperatorWork function = one;
      function.kind = graph::OperatorWork::Kind::kFunction;
      for (const auto& op : {product, scatter, function, product}) {
        result.push_back(op);
      }
      result.back().returned = returned;
    }
    return result;
  };
  division.least = rewritten(division.least, 1);
  division.twice = rewritten(division.twice, 2);
  return division;
}

TEST(DividedModel, WhatIsAtHandIsNotExchangedAgain) {
  for (const bool returned : {false, true}) {
    ModelTrace traced = small_language_model(3);
    traced.divisions.push_back(two_products_of(traced, returned));
    const cost::Cluster cluster = measured_cluster(2);
    const auto model = describe_traced(traced, cluster);
    const cost::TracedLayer& layer = model.traced()->divided[0].part.layers[1];
    const double forward = layer.microbatch_seconds.at("cpu").at(2).forward;
    const double product = layer.given_seconds.at("cpu").at(2).forward / 2;
    EXPECT_GT(product, 0);
    EXPECT_DOUBLE_EQ(layer.returned_seconds.at("cpu").at(2).forward, returned ? product : 0);
    cost::Strategy strategy = cost::small_strategy(1, 1, 2, 2, 4);
    strategy.distribution = cost::Distribution::kSpeed;
    const auto row_of = [&](bool recomputes, bool keeps) {
      strategy.activation_checkpointing = recomputes;
      strategy.keeps_products = keeps;
      return cost::traced_rows(model, cluster, strategy).layers.at(1);
    };
    const auto gathers_and_scatters = [](const cost::LayerRow& row) {
      std::pair<int, int> count = {0, 0};
      for (const cost::TensorCollective& one : row.exchanged.backward) {
        (one.operation == "all_gather" ? count.first : count.second) += one.times;
      }
      return count;
    };
    const cost::LayerRow none = row_of(false, false);
    const cost::LayerRow each = row_of(true, false);
    const cost::LayerRow selective = row_of(true, true);
    // The forward gathers once and scatters behind each product.
    EXPECT_EQ(gathers_and_scatters(none), std::pair(2, 1));
    EXPECT_EQ(gathers_and_scatters(each), std::pair(2 + 1, 1 + (returned ? 1 : 2)));
    EXPECT_EQ(gathers_and_scatters(selective), std::pair(2 + 1, 1));
    const double seconds = none.seconds.at(0);
    EXPECT_NEAR(each.seconds.at(0) - seconds, forward - (returned ? product : 0), 1e-9 * seconds);
    EXPECT_NEAR(selective.seconds.at(0) - seconds, forward - 2 * product, 1e-9 * seconds);
  }
}

TEST(DividedModel, IsPricedWithItsCollectives) {
  ModelTrace traced = small_language_model(3);
  traced.divisions.push_back(half_of(traced));
  cost::Cluster cluster = measured_cluster(2);
  const auto model = describe_traced(traced, cluster);
  SearchOptions options;
  options.runnable_only = true;
  options.keep = 100;
  options.tensor_degree = 2;
  options.constants = cost::runtime_constants(cluster, model.precision);
  const auto priced = [&] { return search(model, cluster, options).best.front().cost; };
  const double by_bandwidth = priced().tensor_seconds;
  EXPECT_GT(by_bandwidth, 0);
  // Gradients of what is whole are averaged over both ranks.
  EXPECT_GT(priced().gradient_seconds, 0);
  // What was measured is taken as measured.
  for (const char* operation : {"all_gather", "reduce_scatter"}) {
    cluster.collectives.push_back({operation, 2, 1, 400, 1.0});
  }
  EXPECT_GT(priced().tensor_seconds, 1.0);
}

TEST(DividedModel, RanksThatWaitForEachOtherComputeLonger) {
  ModelTrace traced = small_language_model(3);
  traced.divisions.push_back(half_of(traced));
  cost::Cluster cluster = measured_cluster(2);
  const auto model = describe_traced(traced, cluster);
  SearchOptions options;
  options.runnable_only = true;
  options.keep = 100;
  options.constants = cost::runtime_constants(cluster, model.precision);
  const auto computed = [&](int degree) {
    options.tensor_degree = degree;
    return search(model, cluster, options).best.front().cost.compute_seconds;
  };
  const double alone = computed(1);
  const double divided = computed(2);
  cluster.waiting = {{.ranks = 2, .share = 0.25}, {.ranks = 4, .share = 3}};
  EXPECT_DOUBLE_EQ(computed(1), alone);
  EXPECT_NEAR(computed(2), 1.25 * divided, 1e-9 * divided);
}

TEST(DividedModel, WhatIsPlannedIsAConfiguration) {
  ModelTrace traced = small_language_model(3);
  traced.divisions.push_back(half_of(traced));
  const auto model = describe_traced(traced, measured_cluster(2));
  SearchOptions options;
  options.runnable_only = true;
  options.tensor_degree = 2;
  options.constants = cost::runtime_constants(measured_cluster(2), model.precision);
  const auto best = search(model, measured_cluster(2), options).best.front();
  EXPECT_EQ(best.strategy.distribution, cost::Distribution::kSpeed);
  EXPECT_EQ(best.strategy.microbatch_size % 2, 0);
  const auto config = config::parse_config(to_config_json(best, model), "planned");
  EXPECT_EQ(config.tensor_parallel_degree, 2);
  EXPECT_EQ(config.optimize, "speed");
  EXPECT_EQ(config.tensor_parallel_kind, "1d");
  EXPECT_FALSE(config.prescaled_batch);
  EXPECT_TRUE(config.ddp);
}

TEST(DividedModel, ADegreeThatWasNotTracedIsNamed) {
  const auto model = describe_traced(small_language_model(3), measured_cluster(2));
  try {
    model.divided_in({2, cost::Distribution::kMemory, true});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("degree 2 of kind \"memory\""));
  }
}

} // namespace
} // namespace tessera::planner
