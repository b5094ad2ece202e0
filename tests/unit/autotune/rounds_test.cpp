#include "tessera/autotune/probe/rounds.h"

#include <cmath>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::autotune {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(Rounds, TheBestCountsAndTheSecondSaysHowSureItIs) {
  Rounds rounds;
  rounds.add(10e-3); // under foreign load
  EXPECT_TRUE(std::isinf(rounds.spread()));
  rounds.add(1e-3);
  EXPECT_NEAR(rounds.spread(), 9, 1e-9);
  rounds.add(1.1e-3);
  EXPECT_EQ(rounds.best(), 1e-3);
  EXPECT_NEAR(rounds.spread(), 0.1, 1e-9);
  rounds.add(5e-3);
  EXPECT_NEAR(rounds.spread(), 0.1, 1e-9);
}

// Products of twice the size take eight times as long, twice.
Series products() {
  Series series;
  series.exponent = 3;
  series.slowdown = 2;
  double seconds = 1e-6;
  for (const double size : {64, 128, 256, 512}) {
    series.add_size(size);
    series.points.back().add(seconds);
    series.points.back().add(seconds);
    seconds *= 8;
  }
  return series;
}

TEST(Doubtful, ACleanSeriesIsBelieved) {
  EXPECT_THAT(doubtful(products()), IsEmpty());
}

TEST(Doubtful, RoundsThatDisagreeAreRepeated) {
  Series series = products();
  series.points[1] = {};
  series.points[1].add(8e-6);
  series.points[1].add(12e-6);
  EXPECT_THAT(doubtful(series), ElementsAre(1));
}

TEST(Doubtful, RoundsThatAgreeOnAnOutlierAreRepeatedToo) {
  // Both rounds of size 256 fell into one burst of load: ten times too slow,
  // and slower than the next size.
  Series series = products();
  series.points[2] = {};
  series.points[2].add(640e-6);
  series.points[2].add(641e-6);
  EXPECT_THAT(doubtful(series), ElementsAre(2));
  series.points[2].add(64e-6);
  series.points[2].add(65e-6);
  EXPECT_THAT(doubtful(series), IsEmpty());
}

TEST(Doubtful, TheLastSizeIsComparedWithTheOneBefore) {
  Series series = products();
  series.points[3] = {};
  series.points[3].add(5e-3);
  series.points[3].add(5e-3);
  EXPECT_THAT(doubtful(series), ElementsAre(3));
}

TEST(Series, WhatStaysOutOfLineIsBoundedByItsNeighbours) {
  Series series = products();
  for (const std::size_t outlier : {std::size_t{1}, std::size_t{3}}) {
    series.points[outlier] = {};
    series.points[outlier].add(1.0);
    series.points[outlier].add(1.0);
  }
  const auto measured = series.measured();
  EXPECT_DOUBLE_EQ(measured[0].seconds, 1e-6);
  EXPECT_DOUBLE_EQ(measured[1].seconds, 1e-6 * 8 * 2);
  EXPECT_DOUBLE_EQ(measured[2].seconds, 64e-6);
  EXPECT_DOUBLE_EQ(measured[3].seconds, 64e-6 * 8 * 2);
}

} // namespace
} // namespace tessera::autotune
