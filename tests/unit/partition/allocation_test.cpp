#include "tessera/partition/allocation.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "tessera/partition/segments.h"

namespace tessera::partitioning {
namespace {

using Counts = std::vector<int>;

Seats allocate(const std::vector<double>& costs, int seats) {
  std::vector<std::int64_t> units;
  for (const double cost : costs) {
    units.push_back(cost_units(cost));
  }
  return allocate_seats(units, Counts(costs.size(), seats), seats);
}

// Algorithm 3 of the paper as printed: one counter for all segments. Kept to
// show on what it differs.
Counts as_printed(std::vector<double> quotient, int seats) {
  Counts count(quotient.size(), 0);
  for (int s = 1; s <= seats; ++s) {
    const auto k = std::max_element(quotient.begin(), quotient.end()) - quotient.begin();
    ++count[k];
    quotient[k] /= s + 1;
  }
  return count;
}

TEST(AllocateSeats, GoldensOfTheCitedMethod) {
  EXPECT_EQ(allocate({.9, .1}, 8).count, (Counts{8, 0}));
  EXPECT_EQ(allocate({.7, .3}, 8).count, (Counts{6, 2}));
  EXPECT_EQ(allocate({.5, .5}, 8).count, (Counts{4, 4}));
  // The textbook election: 100, 80, 30 and 20 thousand votes, 8 seats.
  EXPECT_EQ(allocate_seats({100, 80, 30, 20}, {8, 8, 8, 8}, 8).count, (Counts{4, 3, 1, 0}));
}

TEST(AllocateSeats, TheAlgorithmAsPrintedIsAnotherOne) {
  EXPECT_EQ(as_printed({.9, .1}, 8), (Counts{5, 3}));
  EXPECT_EQ(as_printed({.7, .3}, 8), (Counts{5, 3}));
}

TEST(AllocateSeats, TiesPreferFewerSeatsThenTheLaterSegment) {
  const Seats equal = allocate({.25, .25, .25, .25}, 4);
  EXPECT_EQ(equal.count, (Counts{1, 1, 1, 1}));
  EXPECT_EQ(equal.order, (Counts{3, 2, 1, 0}));
  // .5 / 2 against .25 / 1: nobody stays without for the benefit of a second.
  EXPECT_EQ(allocate_seats({2, 1, 1}, {9, 9, 9}, 3).count, (Counts{1, 1, 1}));
}

TEST(AllocateSeats, CapacityPassesSeatsOn) {
  EXPECT_EQ(allocate_seats({9, 1}, {1, 9}, 4).count, (Counts{1, 3}));
  EXPECT_EQ(allocate_seats({9, 0}, {2, 2}, 4).count, (Counts{2, 2}));
}

// Footnote 3 of the appendix: D'Hondt minimizes the largest ratio of devices
// to cost.
TEST(AllocateSeats, MinimizesTheLargestDevicesPerCost) {
  std::mt19937 random(9);
  for (int round = 0; round < 300; ++round) {
    const std::vector<std::int64_t> costs = {
        1 + static_cast<int>(random() % 100),
        1 + static_cast<int>(random() % 100),
        1 + static_cast<int>(random() % 100)};
    const int seats = 1 + static_cast<int>(random() % 12);
    const auto worst = [&costs](const Counts& count) {
      double ratio = 0;
      for (std::size_t i = 0; i < costs.size(); ++i) {
        ratio = std::max(ratio, count[i] / static_cast<double>(costs[i]));
      }
      return ratio;
    };
    double best = 1e9;
    for (int a = 0; a <= seats; ++a) {
      for (int b = 0; a + b <= seats; ++b) {
        best = std::min(best, worst({a, b, seats - a - b}));
      }
    }
    const Seats found = allocate_seats(costs, {seats, seats, seats}, seats);
    EXPECT_EQ(std::accumulate(found.count.begin(), found.count.end(), 0), seats);
    EXPECT_DOUBLE_EQ(worst(found.count), best) << "round " << round;
  }
}

TEST(HandOut, FirstDeviceGoesToTheLeastCostPerDeviceOthersInOrder) {
  using Sets = std::vector<std::vector<int>>;
  EXPECT_EQ(hand_out({0, 1, 2, 3}, allocate({.25, .25, .25, .25}, 4)), (Sets{{0}, {1}, {2}, {3}}));
  EXPECT_EQ(hand_out({4, 5, 6, 7, 8}, allocate({.35, .65}, 5)), (Sets{{4, 5}, {6, 7, 8}}));
  EXPECT_EQ(
      hand_out({0, 1, 2, 3, 4, 5, 6, 7}, allocate({.01, .4, .59}, 8)),
      (Sets{{}, {1, 2, 3}, {0, 4, 5, 6, 7}}));
}

} // namespace
} // namespace tessera::partitioning
