// Which plan comes first where a probe does not tell several apart.
#include "tessera/planner/simplest.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tessera/planner/candidate_text.h"
#include "tessera/planner/search.h"

#include "tests/unit/cost/small_cases.h"

namespace tessera::planner {
namespace {

using testing::HasSubstr;
using testing::Not;

cost::Cluster probed(int nodes) {
  cost::Cluster cluster = cost::small_cluster(nodes, 0);
  cluster.quality.rounds = 3;
  return cluster;
}

Candidate candidate(int pp, int tp, int stages_per_rank, double seconds) {
  Candidate one;
  one.strategy.pp = pp;
  one.strategy.dp = 4 / pp / tp;
  one.strategy.tp = tp;
  one.strategy.stages_per_rank = stages_per_rank;
  one.strategy.activation_checkpointing = false;
  one.cost.seconds = seconds;
  one.can_recompute = true;
  return one;
}

std::string seconds_of(const std::vector<Candidate>& all) {
  std::string text;
  for (const Candidate& one : all) {
    text += std::to_string(one.cost.seconds).substr(0, 5) + " ";
  }
  return text;
}

std::string preferred(std::vector<Candidate> all, const cost::Cluster& cluster) {
  prefer_simplest(all, cost::small_model(16), cluster);
  return seconds_of(all);
}

TEST(Simplest, ComesFirstAmongThoseThatAProbeDoesNotTellApart) {
  EXPECT_EQ(
      preferred({candidate(2, 2, 1, 1.000), candidate(2, 1, 1, 1.029)}, probed(4)), "1.029 1.000 ");
  EXPECT_EQ(
      preferred({candidate(2, 2, 1, 1.000), candidate(2, 1, 1, 1.031)}, probed(4)), "1.000 1.031 ");
  // The degrees in their order, then the fastest of equals.
  EXPECT_EQ(
      preferred(
          {candidate(4, 1, 1, 1.000),
           candidate(1, 2, 1, 1.001),
           candidate(2, 1, 2, 1.002),
           candidate(2, 1, 1, 1.003),
           candidate(2, 1, 1, 1.004)},
          probed(4)),
      "1.003 1.000 1.001 1.002 1.004 ");
}

TEST(Simplest, NothingIsMovedWithoutAProbe) {
  EXPECT_EQ(
      preferred({candidate(2, 2, 1, 1.00), candidate(2, 1, 1, 1.01)}, cost::small_cluster(4, 0)),
      "1.000 1.010 ");
  std::vector<Candidate> none;
  prefer_simplest(none, cost::small_model(16), probed(4));
  EXPECT_TRUE(none.empty());
}

// A search finds the same strategies on both clusters; only which comes first follows the probe.
TEST(Simplest, ASearchForTheFastestSaysWhenItPrefers) {
  int preferring = 0;
  // With more parameters replicas take longer, until pipelines are the faster ones.
  for (double parameters = 1e5; parameters < 3e7; parameters *= 1.05) {
    cost::DescribedModel model = cost::small_model(8);
    for (auto& layer : model.layers) {
      layer.parameters = static_cast<std::int64_t>(parameters);
    }
    SearchOptions options;
    options.runnable_only = true;
    const SearchResult sorted = search(model, cost::small_cluster(4, 0), options);
    const SearchResult result = search(model, probed(4), options);
    std::vector<Candidate> expected = sorted.best;
    prefer_simplest(expected, model, probed(4));
    EXPECT_EQ(seconds_of(result.best), seconds_of(expected));
    const bool moved = result.best[1].seconds() < result.best[0].seconds();
    EXPECT_EQ(result.prefers_simplest, moved);
    preferring += moved ? 1 : 0;
    const std::string text = summary(result, model);
    EXPECT_EQ(text.find("which a probe does not tell apart") != std::string::npos, moved) << text;
  }
  EXPECT_GT(preferring, 0);
}

// A list by price is not sorted by seconds, and its first is the best.
TEST(Simplest, ASearchForAPricePrefersNothing) {
  cost::Cluster cluster = cost::small_cluster(2, 2);
  cluster.quality.rounds = 3;
  cluster.kinds[0].price_per_hour = 3;
  cluster.kinds[1].price_per_hour = 1;
  SearchOptions options;
  options.objective = Objective::kCost;
  const cost::DescribedModel model = cost::small_model(16);
  const SearchResult result = search(model, cluster, options);
  const auto is_longer = [](const Candidate& a, const Candidate& b) {
    return a.seconds() > b.seconds();
  };
  EXPECT_NE(
      std::adjacent_find(result.best.begin(), result.best.end(), is_longer), result.best.end());
  EXPECT_FALSE(result.prefers_simplest);
  EXPECT_THAT(summary(result, model), Not(HasSubstr("tell apart")));
}

} // namespace
} // namespace tessera::planner
