// Plans whose pipeline ranks hold several stages in turns or more microbatches, or run in fast
// mode.
#include "tessera/planner/pipeline_variants.h"

#include <algorithm>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/base/index.h"
#include "tessera/config/config.h"
#include "tessera/planner/candidate_text.h"
#include "tessera/planner/candidates_json.h"
#include "tessera/planner/fast_mode.h"
#include "tessera/planner/search.h"
#include "tessera/planner/to_config.h"
#include "tessera/simulator/simulate.h"

#include "tests/unit/cost/small_cases.h"

namespace tessera::planner {
namespace {

// Four single devices, whose replicas would exchange gradients for longer than they compute.
struct FewMicrobatches {
  cost::DescribedModel model = cost::small_model(16);
  cost::Cluster cluster = cost::small_cluster(4, 0);
  SearchOptions options = {.most_stages_per_rank = kMostStagesPerRank};

  FewMicrobatches() {
    model.global_batch_size = 4;
    model.activation_checkpointing = false;
    for (auto& layer : model.layers) {
      layer.parameters = 30'000'000;
    }
    for (auto& node : cluster.nodes) {
      node.count = 1;
    }
    options.runnable_only = true;
    options.simulate = 24;
    options.keep = 24;
  }

  std::vector<Candidate> found() const {
    return search(model, cluster, options).best;
  }
};

bool is_in_turns(const Candidate& candidate) {
  return candidate.strategy.stages_per_rank > 1;
}

TEST(Turns, TakeAsManyStagesAsAreAllowed) {
  FewMicrobatches few;
  few.options.most_stages_per_rank = 2;
  const auto found = few.found();
  EXPECT_TRUE(std::any_of(found.begin(), found.end(), is_in_turns));
}

TEST(Turns, AreChosenWhereTheSimulatorFindsThemFaster) {
  const FewMicrobatches few;
  const auto found = few.found();
  const Candidate& best = found.front();
  ASSERT_TRUE(is_in_turns(best));
  EXPECT_EQ(best.strategy.boundaries.size(), at(best.strategy.stages() + 1));
  // The strategy of one stage a rank that it was made of is still there.
  const auto plain = std::find_if(found.begin(), found.end(), [&](const Candidate& one) {
    return one.strategy.pp == best.strategy.pp && one.strategy.dp == best.strategy.dp &&
           one.strategy.microbatch_size == best.strategy.microbatch_size && !is_in_turns(one);
  });
  ASSERT_NE(plain, found.end());
  EXPECT_LT(best.seconds(), 0.9 * plain->seconds());
  EXPECT_EQ(
      best.simulated_seconds,
      simulator::simulate(
          few.model, few.cluster, best.strategy, {.constants = few.options.constants})
          .iteration_seconds);
  EXPECT_THAT(headline(best.strategy), testing::HasSubstr("stages a rank in turns"));
}

TEST(Turns, AreLookedForWhereOneStrategyIsExecuted) {
  FewMicrobatches few;
  few.options.simulate = 1;
  const auto found = few.found();
  EXPECT_TRUE(std::any_of(found.begin(), found.end(), is_in_turns));
}

// The bound is of one stage a rank, so what is in turns may lie below it.
TEST(Turns, AreNotComparedWithTheBound) {
  const FewMicrobatches few;
  SearchResult result = search(few.model, few.cluster, few.options);
  ASSERT_TRUE(is_in_turns(result.best.front()));
  EXPECT_THAT(
      summary(result, few.model),
      testing::HasSubstr(
          "s by estimate of one stage a rank, whatever the placement and the cuts\n"));
  const auto plain = std::find_if_not(result.best.begin(), result.best.end(), is_in_turns);
  std::iter_swap(result.best.begin(), plain);
  EXPECT_THAT(
      summary(result, few.model),
      testing::HasSubstr("of one stage a rank, whatever the placement and the cuts: the first"));
}

TEST(Turns, AreWrittenAsAPartition) {
  const FewMicrobatches few;
  const Candidate best = few.found().front();
  ASSERT_TRUE(is_in_turns(best));
  ASSERT_FALSE(not_runnable(best, few.model));
  const config::Config config = to_config(best, few.model);
  config::check_world(config, 4);
  EXPECT_EQ(config.effective_active_microbatches(), best.strategy.active_microbatches);
  for (int stage = 0; stage < best.strategy.stages(); ++stage) {
    const auto [first, last] = best.strategy.layers_of(stage);
    for (int layer = first; layer < last; ++layer) {
      EXPECT_EQ(config.partition.at("layer." + std::to_string(layer)), stage % best.strategy.pp);
    }
  }
  SearchResult result;
  result.best = {best};
  const std::string json = to_json(result, few.model, few.cluster);
  EXPECT_THAT(
      json,
      testing::HasSubstr("\"stages_per_rank\": " + std::to_string(best.strategy.stages_per_rank)));
}

// Slow links, which a message needs as long as a stage computes: nearly twice as many microbatches
// are on their way as ranks are there.
struct SlowLinks : FewMicrobatches {
  SlowLinks() {
    model.global_batch_size = 16;
    model.returns_home = true;
    for (auto& layer : model.layers) {
      layer.output_elements_per_sample = 1'000'000;
    }
    options.most_stages_per_rank = 1;
  }

  std::vector<Candidate> of_four_ranks() const {
    std::vector<Candidate> result = found();
    std::erase_if(result, [](const Candidate& one) { return one.strategy.pp != 4; });
    return result;
  }
};

TEST(InFlight, MoreMicrobatchesThanUsualAreTriedWhereLinksAreSlow) {
  const SlowLinks slow;
  const auto found = slow.of_four_ranks();
  ASSERT_FALSE(found.empty());
  const cost::Strategy& best = found.front().strategy;
  EXPECT_EQ(best.stages_per_rank, 1);
  EXPECT_EQ(best.active_microbatches, 8);
  EXPECT_THAT(headline(best), testing::HasSubstr("  8 in flight"));
  cost::Strategy usual = best;
  usual.active_microbatches = 6;
  EXPECT_THAT(headline(usual), testing::Not(testing::HasSubstr("in flight")));
  const auto seconds = [&](const cost::Strategy& strategy) {
    return simulator::simulate(
               slow.model, slow.cluster, strategy, {.constants = slow.options.constants})
        .iteration_seconds;
  };
  EXPECT_LT(seconds(best), 0.995 * seconds(usual));
  EXPECT_EQ(to_config(found.front(), slow.model).effective_active_microbatches(), 8);
}

TEST(FastMode, IsPlannedForPipelinesThatWouldSendThroughTheFirstRank) {
  SlowLinks slow;
  const double through_first = slow.of_four_ranks().front().seconds();
  for (const Candidate& one : slow.found()) {
    EXPECT_FALSE(one.strategy.fast_mode);
    EXPECT_FALSE(to_config(one, slow.model).static_mode);
  }
  slow.options.fast_mode = true;
  int others = 0;
  for (const Candidate& one : slow.found()) {
    const config::Config config = to_config(one, slow.model);
    EXPECT_EQ(one.strategy.fast_mode, one.strategy.pp > 2);
    EXPECT_EQ(config.fast_mode, one.strategy.fast_mode);
    EXPECT_EQ(config.static_mode, one.strategy.fast_mode);
    others += one.strategy.fast_mode ? 0 : 1;
  }
  EXPECT_GT(others, 0);
  const Candidate best = slow.of_four_ranks().front();
  EXPECT_LT(best.seconds(), 0.9 * through_first);
  EXPECT_THAT(headline(best.strategy), testing::HasSubstr("  fast mode"));
  SearchResult result;
  result.best = {best};
  EXPECT_THAT(to_json(result, slow.model, slow.cluster), testing::HasSubstr("\"fast_mode\": true"));
  EXPECT_EQ(fast_mode_seconds(result, slow.model, slow.cluster, slow.options), std::nullopt);
  // Where nothing returns home there is nothing to pass on.
  slow.model.returns_home = false;
  EXPECT_FALSE(slow.of_four_ranks().front().strategy.fast_mode);
}

TEST(FastMode, IsHintedAtWhereItWouldGainATenth) {
  SlowLinks slow;
  SearchResult result;
  result.best = slow.of_four_ranks();
  const auto seconds = [&] {
    return fast_mode_seconds(result, slow.model, slow.cluster, slow.options);
  };
  const auto hint = [&] { return fast_mode_hint(seconds()); };
  EXPECT_THAT(hint(), testing::StartsWith("  --fast-mode: the first takes 0."));
  EXPECT_LT(*seconds(), 0.9 * result.best.front().seconds());
  EXPECT_THAT(
      to_json(result, slow.model, slow.cluster, seconds()),
      testing::HasSubstr("\"first_in_fast_mode_seconds\": 0."));
  EXPECT_THAT(
      to_json(result, slow.model, slow.cluster),
      testing::Not(testing::HasSubstr("first_in_fast_mode_seconds")));
  // What was not executed has nothing to be compared with.
  const double simulated = std::exchange(result.best.front().simulated_seconds, 0);
  EXPECT_EQ(hint(), "");
  // Less than a tenth is not worth a word: here the strategy as it is takes no longer.
  result.best.front().simulated_seconds = 1e-3;
  EXPECT_EQ(hint(), "");
  result.best.front().simulated_seconds = simulated;
  EXPECT_NE(hint(), "");
  slow.model.returns_home = false;
  EXPECT_EQ(hint(), "");
}

TEST(Turns, AreLeftOutWhereTheyDoNotPayOrCannotRun) {
  const auto in_turns = [](const FewMicrobatches& few) {
    const auto found = few.found();
    return std::count_if(found.begin(), found.end(), is_in_turns);
  };
  FewMicrobatches few;
  EXPECT_GT(in_turns(few), 0);
  few.options.most_stages_per_rank = 1;
  EXPECT_EQ(in_turns(few), 0);

  FewMicrobatches fixed_order;
  fixed_order.options.runnable_only = false;
  EXPECT_EQ(in_turns(fixed_order), 0);

  FewMicrobatches one_layer_each;
  one_layer_each.model = cost::small_model(4);
  one_layer_each.model.global_batch_size = 4;
  for (const Candidate& one : one_layer_each.found()) {
    EXPECT_TRUE(!is_in_turns(one) || one.strategy.pp == 2);
  }

  // Every turn sends, and here a message takes as long as many layers.
  FewMicrobatches slow;
  for (auto& layer : slow.model.layers) {
    layer.output_elements_per_sample = 20'000'000;
  }
  EXPECT_EQ(in_turns(slow), 0);

  // The last layer is on the last rank, so one that shares the first one's weight forbids turns.
  FewMicrobatches tied;
  tied.model.layers.back().shares_parameters_with = "layer.0";
  EXPECT_EQ(in_turns(tied), 0);
}

} // namespace
} // namespace tessera::planner
