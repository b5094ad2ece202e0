#include "cli/launch/restarts.h"

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera::cli {
namespace {

using testing::ElementsAre;

/// The numbers that run() got, when its runs end with `outcomes` in turn.
std::vector<int> runs(const std::vector<RunOutcome>& outcomes, int most) {
  std::vector<int> numbers;
  run_with_restarts(
      [&](int restart) {
        numbers.push_back(restart);
        return outcomes.at(numbers.size() - 1);
      },
      most);
  return numbers;
}

TEST(Restart, StopsAtSuccessOrAtTheLimit) {
  EXPECT_THAT(runs({{0, false}}, 3), ElementsAre(0));
  EXPECT_THAT(runs({{1, false}}, 0), ElementsAre(0));
  EXPECT_THAT(runs({{137, false}, {0, false}}, 3), ElementsAre(0, 1));
  EXPECT_THAT(runs({{137, false}, {1, false}, {134, false}}, 2), ElementsAre(0, 1, 2));
}

TEST(Restart, WhatWouldFailAgainIsNotRepeated) {
  for (const int status : {2, 126, 127}) {
    EXPECT_THAT(runs({{status, false}}, 3), ElementsAre(0)) << status;
  }
  EXPECT_THAT(runs({{1, false}, {2, false}}, 3), ElementsAre(0, 1));
}

TEST(Restart, AJobThatWasAskedToEndStaysEnded) {
  EXPECT_THAT(runs({{143, true}}, 3), ElementsAre(0));
}

TEST(Restart, TheLastOutcomeCounts) {
  int left = 2;
  const RunOutcome outcome = run_with_restarts(
      [&](int) {
        return RunOutcome{left-- > 0 ? 9 : 0, false};
      },
      5);
  EXPECT_EQ(outcome.exit_status, 0);
}

} // namespace
} // namespace tessera::cli
