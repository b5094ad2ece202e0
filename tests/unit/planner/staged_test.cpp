// Stages of own widths: beside full enumeration of small random cases.
#include <cmath>
#include <numeric>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/error.h"
#include "tessera/planner/search.h"
#include "tessera/planner/staged_search.h"

#include "tests/unit/cost/small_cases.h"
#include "tests/unit/planner/every_strategy.h"

namespace tessera::planner {
namespace {

using cost::small_cluster;
using cost::small_model;
using testing::HasSubstr;
using testing::ThrowsMessage;

// All ways to write `sum` as `parts` numbers of 1 or more, in order.
std::vector<std::vector<int>> every_sum(int sum, int parts) {
  if (parts == 1) {
    return sum >= 1 ? std::vector<std::vector<int>>{{sum}} : std::vector<std::vector<int>>{};
  }
  std::vector<std::vector<int>> result;
  for (int first = 1; first < sum; ++first) {
    for (std::vector<int> rest : every_sum(sum - first, parts - 1)) {
      rest.insert(rest.begin(), first);
      result.push_back(std::move(rest));
    }
  }
  return result;
}

// Visits every strategy of own widths: every placement, width, degree, division of the samples,
// recomputation and cut. It shares nothing with the search but the prices.
class Every {
 public:
  explicit Every(cost::StagedTables& tables) : tables_(tables) {}

  double least() {
    const auto& model = tables_.model();
    for (int m = 1; m <= model.global_batch_size; ++m) {
      if (model.global_batch_size % m == 0) {
        strategy_.microbatches = m;
        samples_ = model.global_batch_size / m;
        for (const std::vector<int>& placement : every_placement(tables_.cluster())) {
          placement_ = placement;
          stage(0, 0);
        }
      }
    }
    return least_;
  }

 private:
  void stage(int layer, std::size_t used) {
    const int layers = static_cast<int>(tables_.model().layers.size());
    if (layer == layers) {
      const auto cost = cost::price(strategy_, tables_);
      least_ = cost.fits() ? std::min(least_, cost.seconds) : least_;
      return;
    }
    for (int last = layer + 1; last <= layers; ++last) {
      for (std::size_t width = 1; used + width <= placement_.size(); ++width) {
        for (const int tp : {1, 2}) {
          if (width % static_cast<std::size_t>(tp) != 0) {
            continue;
          }
          for (const auto& samples : every_sum(samples_, static_cast<int>(width) / tp)) {
            for (const bool recomputes : {false, true}) {
              const auto begin = placement_.begin() + static_cast<std::ptrdiff_t>(used);
              strategy_.stages.push_back(
                  {.first_layer = layer,
                   .last_layer = last,
                   .way = {tp},
                   .recomputes = recomputes,
                   .devices = {begin, begin + static_cast<std::ptrdiff_t>(width)},
                   .samples = samples});
              stage(last, used + width);
              strategy_.stages.pop_back();
            }
          }
        }
      }
    }
  }

  cost::StagedTables& tables_;
  cost::StagedStrategy strategy_;
  std::vector<int> placement_;
  int samples_ = 1;
  double least_ = std::numeric_limits<double>::infinity();
};

struct Case {
  cost::DescribedModel model;
  cost::Cluster cluster;
};

// Up to three devices on up to two nodes, two or three layers, a batch of two to four samples.
Case random_case(std::mt19937& random) {
  const auto whole = [&](int low, int high) {
    return low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1));
  };
  const auto size = [&](double low, double high) {
    return low * std::pow(high / low, static_cast<double>(random()) / 4294967296.0);
  };
  Case one;
  one.cluster = small_cluster(1, whole(0, 1));
  one.cluster.nodes[0].count = whole(1, 3 - static_cast<int>(one.cluster.nodes.size()) + 1);
  if (one.cluster.nodes.size() == 2) {
    one.cluster.nodes[1].count = 1;
    one.cluster.nodes[1].inter_bytes_per_s = size(1e8, 1e10);
  }
  const int layers = whole(2, 3);
  one.model = small_model(layers, 0, whole(0, 1) == 0 ? "other" : "transformer_layer");
  one.model.global_batch_size = whole(2, 4);
  const double parameters = size(1e6, 3e8);
  for (int i = 0; i < layers; ++i) {
    auto& layer = one.model.layers[static_cast<std::size_t>(i)];
    layer.parameters = static_cast<std::int64_t>(size(parameters / 3, parameters));
    layer.output_elements_per_sample = static_cast<std::int64_t>(size(1e4, 1e8));
    auto& times =
        one.model.measured().layers[static_cast<std::size_t>(i)].forward_seconds_per_sample;
    times["fast"][1] = size(1e-4, 1e-2);
    times["fast"][2] = times["fast"][1] * size(0.5, 1);
    for (const int tp : {1, 2}) {
      times["slow"][tp] = times["fast"][tp] * size(1, 4);
    }
  }
  return one;
}

TEST(Staged, TheBoundHoldsAndAlikeDevicesHaveTheOptimum) {
  std::mt19937 random(113);
  int fit = 0;
  int optimal = 0;
  int alike = 0;
  int wider = 0;
  int bounded = 0;
  for (int round = 0; round < 150; ++round) {
    const Case one = random_case(random);
    SearchOptions options;
    options.keep = 1;
    if (round % 2 == 0) { // no gradients and no optimizer, which are no part of the program
      options.constants.gradient_wire_bytes = 0;
      options.constants.optimizer_traffic_bytes = 0;
      options.constants.link_latency_seconds = 0;
    }
    cost::StagedTables tables(one.model, one.cluster, options.constants);
    const double least = Every(tables).least();
    const StagedResult result = search_staged(one.model, one.cluster, options);
    EXPECT_LE(result.lower_bound, least) << "round " << round;
    bounded += result.lower_bound > 0 ? 1 : 0;
    const bool is_alike = one.cluster.nodes.size() == 1;
    if (result.best.empty()) {
      // A placement that the search does not try may still fit.
      EXPECT_TRUE(std::isinf(least) || !is_alike) << "round " << round;
      continue;
    }
    ++fit;
    const StagedCandidate& best = result.best.front();
    cost::validate(
        best.strategy,
        one.cluster.device_count(),
        static_cast<int>(one.model.layers.size()),
        one.model.global_batch_size);
    EXPECT_TRUE(best.cost.fits());
    EXPECT_GE(best.cost.seconds, least * (1 - 1e-9)) << "round " << round;
    const bool is_optimum = best.cost.seconds <= least * (1 + 1e-9);
    optimal += is_optimum ? 1 : 0;
    if (is_alike && round % 2 == 0) {
      ++alike;
      EXPECT_TRUE(is_optimum) << "round " << round << ": " << best.cost.seconds << ", " << least;
    }
    const auto& stages = best.strategy.stages;
    wider += std::any_of(
                 stages.begin(),
                 stages.end(),
                 [&](const auto& stage) {
                   return stage.devices.size() != stages.front().devices.size();
                 })
                 ? 1
                 : 0;
  }
  // Otherwise nothing was tested.
  EXPECT_GT(fit, 100);
  EXPECT_GT(alike, 20);
  EXPECT_GT(optimal, fit * 8 / 10);
  EXPECT_GT(wider, 3);
  EXPECT_GT(bounded, 100); // a divided layer that was measured may have nothing but traffic
}

// One layer takes three times as long as the other: three devices and one.
TEST(Staged, AStageIsAsWideAsItsLayersAreLong) {
  auto model = small_model(2);
  model.global_batch_size = 48;
  model.activation_checkpointing = false;
  model.measured().layers[0].forward_seconds_per_sample["fast"] = {{1, 3e-3}};
  model.measured().layers[1].forward_seconds_per_sample["fast"] = {{1, 1e-3}};
  for (cost::Layer& layer : model.layers) {
    layer.parameters = 150'000'000; // two of which are too many for a device
  }
  auto cluster = small_cluster(1, 0);
  cluster.nodes[0].count = 4;
  cluster.nodes[0].intra_bytes_per_s = 1e12;
  cluster.kinds.resize(1);
  cluster.kinds[0].memory_bytes = 9e9;
  SearchOptions options;
  options.constants = cost::bare_constants();
  const double uniform = search(model, cluster, options).best.front().cost.seconds;
  const StagedResult result = search_staged(model, cluster, options, uniform);
  ASSERT_FALSE(result.best.empty());
  const auto& stages = result.best.front().strategy.stages;
  ASSERT_EQ(stages.size(), 2u);
  EXPECT_EQ(stages[0].devices.size(), 3u);
  EXPECT_EQ(stages[1].devices.size(), 1u);
  EXPECT_LT(result.best.front().cost.seconds, uniform);
  const std::string text = staged_text(result, cluster);
  EXPECT_THAT(text, HasSubstr("not executable by the runtime"));
  EXPECT_THAT(text, HasSubstr("layers 0 to 0: dp 3, tp 1, samples"));
  EXPECT_THAT(text, HasSubstr("layers 1 to 1: dp 1, tp 1, samples"));
}

TEST(Staged, OnlyStagesThatNeedItRecompute) {
  auto model = small_model(4);
  model.global_batch_size = 16;
  auto cluster = small_cluster(2, 0);
  cluster.kinds.resize(1);
  for (auto& times : model.measured().layers) {
    times.forward_seconds_per_sample.erase("slow");
    times.forward_seconds_per_sample["fast"].erase(2);
  }
  for (cost::Layer& layer : model.layers) {
    layer.kind = "transformer_layer";
    layer.parameters = 100'000'000;
    layer.output_elements_per_sample = 30'000'000;
  }
  SearchOptions options;
  int some = 0;
  for (const double memory : {6e9, 7e9, 8e9, 9e9, 10e9, 12e9, 14e9}) {
    cluster.kinds[0].memory_bytes = memory;
    for (const StagedCandidate& candidate : search_staged(model, cluster, options).best) {
      const auto& stages = candidate.strategy.stages;
      const auto count = std::count_if(
          stages.begin(), stages.end(), [](const auto& stage) { return stage.recomputes; });
      some += count > 0 && count < static_cast<int>(stages.size()) ? 1 : 0;
      EXPECT_TRUE(candidate.cost.fits());
    }
  }
  EXPECT_GT(some, 0);
}

TEST(Staged, TheBoundHoldsWhereMoreSamplesTakeLessTimeEach) {
  auto model = small_model(1);
  model.global_batch_size = 4;
  model.measured().layers[0].fixed_seconds = {{"fast", 0.9e-3}, {"slow", 0}};
  auto cluster = small_cluster(1, 0);
  cluster.nodes[0].count = 1;
  SearchOptions options;
  options.constants = cost::bare_constants();
  const StagedResult result = search_staged(model, cluster, options);
  ASSERT_FALSE(result.best.empty());
  const double seconds = result.best.front().cost.seconds;
  EXPECT_LT(seconds, 2 * 3e-3); // four samples at once take less than two by themselves
  EXPECT_LE(result.lower_bound, seconds);
}

TEST(Staged, WhatMustRunIsRefused) {
  SearchOptions options;
  options.runnable_only = true;
  EXPECT_THAT(
      [&] { search_staged(small_model(2), small_cluster(1, 0), options); },
      ThrowsMessage<ConfigError>(HasSubstr("the runtime executes none of them")));
}

TEST(Staged, ManyDevicesAreTakenTogether) {
  auto model = small_model(30, 0.1);
  model.global_batch_size = 8;
  const StagedResult result = search_staged(model, small_cluster(4, 4), {});
  ASSERT_FALSE(result.best.empty());
  EXPECT_EQ(result.devices_together, 2);
  EXPECT_EQ(result.layers_together, 2);
  EXPECT_THAT(
      staged_text(result, small_cluster(4, 4)),
      HasSubstr("multiples of 2 devices and cuts between runs of 2 layers"));
}

TEST(Staged, NoMoreThanEightRunsOfDevicesAreTried) {
  const auto together = [](int devices) {
    auto cluster = small_cluster(1, 0);
    cluster.nodes[0].count = devices;
    auto model = small_model(1);
    model.global_batch_size = 1;
    return search_staged(model, cluster, {}).devices_together;
  };
  EXPECT_EQ(together(8), 1);
  EXPECT_EQ(together(9), 2); // threes would leave three runs, so one device is left out
  EXPECT_EQ(together(10), 2);
  EXPECT_EQ(together(15), 3);
}

TEST(Staged, WhatIsTakenTogetherIsSaidOfDevicesAndOfLayers) {
  const auto said = [](int devices, int layers) {
    StagedResult result;
    result.best.resize(1);
    result.devices_together = devices;
    result.layers_together = layers;
    return staged_text(result, small_cluster(1, 0));
  };
  EXPECT_THAT(said(2, 1), HasSubstr("multiples of 2 devices and cuts between runs of 1 layers"));
  EXPECT_THAT(said(1, 2), HasSubstr("multiples of 1 devices and cuts between runs of 2 layers"));
  EXPECT_THAT(said(1, 1), testing::Not(HasSubstr("were tried")));
}

} // namespace
} // namespace tessera::planner
