#include "tessera/partition/segments.h"

#include <algorithm>
#include <compare>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/base/error.h"

namespace tessera::partitioning {
namespace {

using Costs = std::vector<std::int64_t>;

struct Quality {
  std::int64_t largest = 0;
  std::int64_t squares = 0;
  auto operator<=>(const Quality&) const = default;
};

Quality quality_of(const Costs& costs, const std::vector<int>& begins) {
  Quality quality;
  for (std::size_t k = 0; k + 1 < begins.size(); ++k) {
    std::int64_t run = 0;
    for (int i = begins[k]; i < begins[k + 1]; ++i) {
      run += costs[i];
    }
    quality.largest = std::max(quality.largest, run);
    quality.squares += run * run;
  }
  return quality;
}

// Every way to cut, in lexicographic order of the places of the cuts.
std::vector<int> best_by_trying_all(const Costs& costs, int segments) {
  const int count = static_cast<int>(costs.size());
  std::vector<bool> cut(count - 1, false);
  std::fill(cut.begin(), cut.begin() + (segments - 1), true);
  std::vector<int> best;
  do {
    std::vector<int> begins = {0};
    for (int i = 1; i < count; ++i) {
      if (cut[i - 1]) {
        begins.push_back(i);
      }
    }
    begins.push_back(count);
    if (best.empty() || quality_of(costs, begins) < quality_of(costs, best)) {
      best = begins;
    }
  } while (std::prev_permutation(cut.begin(), cut.end()));
  return best;
}

TEST(SplitEvenly, ByHand) {
  EXPECT_EQ(split_evenly({3, 1, 1, 1}, 2), (std::vector<int>{0, 1, 4}));
  EXPECT_EQ(split_evenly({1, 1, 1, 3}, 2), (std::vector<int>{0, 3, 4}));
  EXPECT_EQ(split_evenly({5}, 1), (std::vector<int>{0, 1}));
  EXPECT_EQ(split_evenly({1, 2, 3}, 3), (std::vector<int>{0, 1, 2, 3}));
}

TEST(SplitEvenly, EqualLayersLeaveTheShorterRunsInFront) {
  EXPECT_EQ(split_evenly(Costs(24, 7), 5), (std::vector<int>{0, 4, 9, 14, 19, 24}));
  EXPECT_EQ(split_evenly(Costs(24, 7), 4), (std::vector<int>{0, 6, 12, 18, 24}));
}

TEST(SplitEvenly, TheRestIsEvenWhereOneElementSetsTheMaximum) {
  // The minimum of (2) is 100 for any cut of the others.
  EXPECT_EQ(split_evenly({100, 1, 1, 1, 1, 1, 1}, 4), (std::vector<int>{0, 1, 3, 5, 7}));
}

TEST(SplitEvenly, AsGoodAsTryingAll) {
  std::mt19937 random(5);
  for (int round = 0; round < 3000; ++round) {
    const int count = 1 + static_cast<int>(random() % 11);
    const int segments = 1 + static_cast<int>(random() % count);
    const unsigned range = round % 3 == 0 ? 3 : 1000; // many ties, few ties
    Costs costs;
    for (int i = 0; i < count; ++i) {
      costs.push_back(random() % range);
    }
    const std::vector<int> begins = split_evenly(costs, segments);
    ASSERT_EQ(begins.size(), segments + 1U);
    EXPECT_EQ(begins.front(), 0);
    EXPECT_EQ(begins.back(), count);
    for (int k = 0; k < segments; ++k) {
      EXPECT_LT(begins[k], begins[k + 1]);
    }
    const std::vector<int> best = best_by_trying_all(costs, segments);
    EXPECT_EQ(quality_of(costs, begins), quality_of(costs, best));
    ASSERT_FALSE(HasFailure()) << "round " << round;
  }
}

TEST(SplitEvenly, ThousandsOfElementsWithTheWholeCost) {
  Costs costs(4096, kCostUnits / 4096);
  const std::vector<int> begins = split_evenly(costs, 64);
  for (int k = 0; k <= 64; ++k) {
    EXPECT_EQ(begins[k], 64 * k);
  }
}

TEST(SplitEvenly, MoreRunsThanElementsIsRefused) {
  EXPECT_THROW(split_evenly({1, 2}, 3), InternalError);
  EXPECT_THROW(split_evenly({1, 2}, 0), InternalError);
}

TEST(CostUnits, EqualSharesAreEqualHoweverTheyWereSummed) {
  EXPECT_EQ(cost_units(1.0), kCostUnits);
  EXPECT_EQ(cost_units(0.0), 0);
  EXPECT_EQ(cost_units(0.1 + 0.2), cost_units(0.3));
}

} // namespace
} // namespace tessera::partitioning
