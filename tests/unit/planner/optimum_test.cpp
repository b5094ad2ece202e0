// How far the search is from the optimum: beside full enumeration of small random cases.
#include <cmath>
#include <random>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/planner/candidate_text.h"
#include "tessera/planner/nothing_fits.h"
#include "tessera/planner/search.h"

#include "tests/unit/cost/small_cases.h"
#include "tests/unit/planner/every_strategy.h"

namespace tessera::planner {
namespace {

using cost::small_cluster;
using cost::small_model;
using testing::HasSubstr;

// What differs in order of summation.
constexpr double kRounding = 1e-9;

class Draw {
 public:
  explicit Draw(unsigned seed) : random_(seed) {}

  int whole(int low, int high) {
    return low + static_cast<int>(random_() % static_cast<unsigned>(high - low + 1));
  }
  // Between low and high, evenly in its logarithm.
  double size(double low, double high) {
    const double share = static_cast<double>(random_()) / 4294967296.0;
    return low * std::pow(high / low, share);
  }

 private:
  std::mt19937 random_;
};

struct Case {
  cost::DescribedModel model;
  cost::Cluster cluster;
  SearchOptions options;

  // One kind of device, all of them in one node: every placement is the same.
  bool alike() const {
    return cluster.nodes.size() == 1;
  }
};

// Two devices to four in up to three nodes, two to five layers, a batch of four or six.
Case random_case(Draw& draw) {
  Case one;
  one.cluster = small_cluster(1, 0);
  one.cluster.nodes.clear();
  const int devices = draw.whole(2, 4);
  const int kinds = draw.whole(1, 2);
  const double intra = draw.size(1e9, 1e11);
  for (int left = devices; left > 0;) {
    const int count = one.cluster.nodes.size() == 2 ? left : draw.whole(1, left);
    one.cluster.nodes.push_back(
        {.kind = draw.whole(0, kinds - 1),
         .count = count,
         .intra_bytes_per_s = intra,
         .inter_bytes_per_s = draw.size(1e8, 1e10)});
    left -= count;
  }
  const int layers = draw.whole(2, 5);
  one.model = small_model(layers, 0, draw.whole(0, 1) == 0 ? "other" : "transformer_layer");
  one.model.global_batch_size = draw.whole(0, 1) == 0 ? 4 : 6;
  one.model.activation_checkpointing = draw.whole(0, 1) == 0;
  // Some fit everywhere, some only in part.
  const double parameters = draw.size(1e6, 3e8);
  for (int i = 0; i < layers; ++i) {
    auto& layer = one.model.layers[static_cast<std::size_t>(i)];
    layer.parameters = static_cast<std::int64_t>(draw.size(parameters / 3, parameters));
    layer.output_elements_per_sample = static_cast<std::int64_t>(draw.size(1e4, 1e7));
    auto& seconds =
        one.model.measured().layers[static_cast<std::size_t>(i)].forward_seconds_per_sample;
    seconds["fast"][1] = draw.size(1e-4, 1e-2);
    seconds["fast"][2] = seconds["fast"][1] * draw.size(0.5, 1);
    for (const int tp : {1, 2}) {
      seconds["slow"][tp] = seconds["fast"][tp] * draw.size(1, 4);
    }
  }
  if (draw.whole(0, 2) == 0) {
    one.options.constants = cost::bare_constants();
  }
  one.options.keep = 1;
  return one;
}

cost::Strategy settings_of(const Case& one) {
  cost::Strategy base;
  base.activation_checkpointing = one.model.activation_checkpointing;
  return base;
}

TEST(Optimum, TheBoundHoldsAndWhatIsSaidToBeOptimalIs) {
  Draw draw(18);
  int exact = 0;
  int alike = 0;
  int optimal = 0;
  int fit = 0;
  for (int round = 0; round < 1000; ++round) {
    const Case one = random_case(draw);
    const double least =
        least_seconds(one.model, one.cluster, settings_of(one), one.options.constants);
    SearchResult result;
    try {
      result = search(one.model, one.cluster, one.options);
    } catch (const PlanError&) {
      // A placement that the search does not try may still fit, but not where all are the same.
      EXPECT_TRUE(std::isinf(least) || !one.alike()) << "round " << round;
      continue;
    }
    ++fit;
    const double found = result.best.front().cost.seconds;
    EXPECT_GT(result.lower_bound, 0) << "round " << round;
    EXPECT_LE(result.lower_bound, least * (1 + 1e-12)) << "round " << round;
    EXPECT_GE(found, least * (1 - kRounding)) << "round " << round;
    const bool is_optimum = found <= least * (1 + kRounding);
    optimal += is_optimum ? 1 : 0;
    if (result.gap() <= kRounding) {
      ++exact;
      EXPECT_TRUE(is_optimum) << "round " << round << ": " << found << " and " << least;
      EXPECT_THAT(summary(result, one.model), HasSubstr("the first is the optimum"));
    }
    if (one.alike()) {
      ++alike;
      EXPECT_TRUE(is_optimum) << "round " << round << ": " << found << " and " << least;
    }
  }
  // Otherwise nothing was tested.
  EXPECT_GT(fit, 800);
  EXPECT_GT(alike, 150);
  EXPECT_GT(exact, 150);
  EXPECT_GT(optimal, 600);
}

// Every way to save memory beside those without, where all placements are the same.
TEST(Optimum, SavingsAreComparedExactly) {
  Draw draw(107);
  int saving = 0;
  for (int round = 0; round < 60; ++round) {
    Case one = random_case(draw);
    one.cluster.nodes.resize(1);
    one.cluster.nodes[0].kind = 0;
    one.cluster.nodes[0].count = draw.whole(1, 3);
    one.model.global_batch_size = 6;
    one.model.activation_checkpointing = false;
    auto& device = one.cluster.kinds[0];
    device.memory_bytes = draw.size(2e9, 3e10);
    device.host_bytes_per_s = draw.size(1e9, 1e11);
    device.host_memory_bytes = draw.size(1e9, 1e11);
    one.cluster.kinds.resize(1);
    one.options.compare_savings = true;
    double least = std::numeric_limits<double>::infinity();
    double least_whole = least; // with whole parameters on every replica
    for (int bits = 0; bits < 32; ++bits) {
      cost::Strategy base;
      base.activation_checkpointing = (bits & 1) != 0;
      base.shard_optimizer_state = (bits & 2) != 0;
      base.shard_parameters = (bits & 4) != 0;
      base.offload_optimizer_state = (bits & 8) != 0;
      base.offload_activations = (bits & 16) != 0;
      if (base.shard_optimizer_state || !base.shard_parameters) {
        auto model = one.model;
        model.activation_checkpointing = base.activation_checkpointing;
        const double own = least_seconds(model, one.cluster, base, one.options.constants);
        least = std::min(least, own);
        least_whole = base.shard_parameters ? least_whole : std::min(least_whole, own);
      }
    }
    if (std::isinf(least)) {
      EXPECT_THROW(search(one.model, one.cluster, one.options), PlanError);
      continue;
    }
    const SearchResult result = search(one.model, one.cluster, one.options);
    const cost::Strategy& best = result.best.front().strategy;
    EXPECT_LE(result.lower_bound, least * (1 + 1e-12)) << "round " << round;
    EXPECT_GE(result.best.front().cost.seconds, least * (1 - kRounding)) << "round " << round;
    // Parameters that are divided are exchanged beside the computation, so the smallest largest
    // stage need not be the best of them.
    EXPECT_LE(result.best.front().cost.seconds, least_whole * (1 + kRounding)) << "round " << round;
    saving += best.activation_checkpointing || best.offload_activations ||
                      best.offload_optimizer_state || best.shard_parameters
                  ? 1
                  : 0;
  }
  EXPECT_GT(saving, 5);
}

// How long activations are held that ranks gather depends on the pace of their hosts, whose memory
// the search, the bound and the price must see alike.
class Paces : public testing::TestWithParam<cost::HostPace> {
 protected:
  Paces() {
    model_ = small_model(4, 0, "transformer_layer");
    model_.activation_checkpointing = false;
    model_.global_batch_size = 4;
    for (std::size_t i = 0; i < model_.layers.size(); ++i) {
      model_.layers[i].parameters = 12 * 128 * 128 * static_cast<int>(1 + i % 2);
      model_.layers[i].output_elements_per_sample = 128 * 128;
    }
    model_.source =
        cost::SizedModel{.sequence_length = 128, .num_attention_heads = 2, .vocabulary_size = 32};
    cluster_.kinds.resize(1);
    cluster_.nodes[0].count = 4;
    cluster_.kinds[0].product_flops_per_s = 1e12;
    cluster_.kinds[0].launch_seconds = GetParam() == cost::HostPace::kLevel ? 1e-2 : 0;
    cluster_.stalling_share = GetParam() == cost::HostPace::kStalled ? 0.9 : 0;
    options_.schedule = cost::Schedule::kSimple; // all microbatches are held
    options_.constants.context_bytes = 0;
    options_.keep = 1;
  }

  // Compares the search with full enumeration at every limit of memory that some strategy needs.
  void expect_found() {
    cost::Strategy base;
    base.activation_checkpointing = false;
    base.schedule = options_.schedule;
    cluster_.kinds[0].memory_bytes = 16e9;
    std::set<double> limits; // of memory, that the strategies need
    int gathering = 0;
    every_strategy(
        model_, cluster_, base, options_.constants, [&](const auto& strategy, const auto& cost) {
          limits.insert(cost.needed_bytes());
          gathering += strategy.tp > 1 && strategy.pp > 1 ? 1 : 0;
        });
    ASSERT_GT(limits.size(), 20u);
    ASSERT_GT(gathering, 5);
    for (const double limit : limits) {
      cluster_.kinds[0].memory_bytes = limit * (1 + 1e-9);
      const double least = least_seconds(model_, cluster_, base, options_.constants);
      for (const int degree : {0, 2}) {
        options_.tensor_degree = degree;
        double found = std::numeric_limits<double>::infinity();
        try {
          const SearchResult result = search(model_, cluster_, options_);
          found = result.best.front().cost.seconds;
          EXPECT_LE(result.lower_bound, found) << limit;
          if (degree == 0) {
            EXPECT_LE(result.lower_bound, least * (1 + 1e-12)) << limit;
          }
        } catch (const NothingFits&) {
        }
        double fits = std::numeric_limits<double>::infinity();
        every_strategy(
            model_,
            cluster_,
            base,
            options_.constants,
            [&](const auto& strategy, const auto& cost) {
              fits = degree == 0 || strategy.tp == degree ? std::min(fits, cost.seconds) : fits;
            });
        EXPECT_EQ(std::isinf(found), std::isinf(fits)) << limit << ", degree " << degree;
        // Layers are assigned by what devices take, and not by what they wait.
        if (GetParam() != cost::HostPace::kLevel && !std::isinf(fits)) {
          EXPECT_LE(found, fits * (1 + kRounding)) << limit << ", degree " << degree;
        }
      }
    }
  }

  cost::DescribedModel model_;
  cost::Cluster cluster_ = small_cluster(1, 0);
  SearchOptions options_;
};

TEST_P(Paces, WhatFitsIsFound) {
  expect_found();
}

// A table that takes hardly any time makes the fastest boundaries other ones than the smallest.
TEST_P(Paces, WhatFitsIsFoundBesideATable) {
  model_.layers.insert(model_.layers.begin(), model_.layers.front());
  model_.layers.front().name = "table";
  model_.layers.front().kind = "embedding";
  for (const double share : {0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, 7.0, 8.0}) {
    model_.layers.front().parameters = std::lround(12 * 128 * 128 * share);
    expect_found();
  }
}

INSTANTIATE_TEST_SUITE_P(
    OfHosts,
    Paces,
    testing::Values(cost::HostPace::kAhead, cost::HostPace::kLevel, cost::HostPace::kStalled));

TEST(Optimum, MethodsWithoutABoundSayNone) {
  SearchOptions options;
  options.method = Method::kRandom;
  const auto result = search(small_model(4), small_cluster(1, 0), options);
  EXPECT_EQ(result.lower_bound, 0);
  EXPECT_THAT(summary(result, small_model(4)), testing::Not(HasSubstr("lower bound")));
}

} // namespace
} // namespace tessera::planner
