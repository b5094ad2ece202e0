#include "tessera/autotune/probe/rounds.h"

#include <cmath>
#include <random>

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

// A probe of a machine on which every fourth round meets other programs, which slow it down by up
// to four times: `rounds` rounds of every size, and up to `extra` more where they are in doubt.
std::vector<cost::MeasuredPoint> probed(std::mt19937& random, int rounds, int extra) {
  std::uniform_real_distribution<double> unit(0, 1);
  Series series = products();
  for (Rounds& point : series.points) {
    point = {};
  }
  const auto once = [&](std::size_t i) {
    const double jitter = 1 + 0.05 * unit(random);
    const double load = unit(random) < 0.25 ? 1.2 + 2.8 * unit(random) : 1;
    series.points[i].add(1e-6 * std::pow(8, static_cast<double>(i)) * jitter * load);
  };
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t i = 0; i < series.points.size(); ++i) {
      once(i);
    }
  }
  for (int round = 0; round < extra; ++round) {
    for (const std::size_t i : doubtful(series)) {
      once(i);
    }
  }
  return series.measured();
}

// Returns how many of 1,000 pairs of probes agree within a share at every size.
int pairs_that_agree(double share, int rounds, int extra) {
  std::mt19937 random(1);
  int agreed = 0;
  for (int pair = 0; pair < 1000; ++pair) {
    const auto one = probed(random, rounds, extra);
    const auto other = probed(random, rounds, extra);
    bool all = true;
    for (std::size_t i = 0; i < one.size(); ++i) {
      all = all && std::abs(one[i].seconds / other[i].seconds - 1) <= share;
    }
    agreed += all ? 1 : 0;
  }
  return agreed;
}

// Two probes of one machine agree within 6 %, which is its jitter, where one round of each does
// not.
TEST(Rounds, TwoProbesOfOneMachineAgree) {
  EXPECT_GE(pairs_that_agree(kAgreement, 3, 8), 950);
  EXPECT_LE(pairs_that_agree(kAgreement, 1, 0), 500);
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
