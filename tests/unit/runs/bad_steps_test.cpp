#include "cli/train/bad_steps.h"

#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/agreed_error.h"
#include "tests/support/test_folder.h"

namespace tessera::cli {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using tests::message_of;

const double kNan = std::nan("");
const double kInfinity = std::numeric_limits<double>::infinity();

std::string nowhere() {
  return "";
}

BadStepPolicy skipping(double spike = 0, std::int64_t most_skipped = 10) {
  return {"skip", spike, most_skipped};
}

TEST(BadSteps, FiniteUpdatesAreApplied) {
  BadStepJudge judge{BadStepPolicy{}};
  for (int step = 1; step <= 100; ++step) {
    EXPECT_EQ(judge.judge(step, {{2.5, 1e30}, {2.5, 1e-30}}, nowhere), "");
  }
  EXPECT_EQ(judge.skipped(), 0);
}

TEST(BadSteps, StopNamesStepRanksAndPlace) {
  BadStepJudge judge{BadStepPolicy{}};
  const auto text = message_of<AgreedError>([&] {
    judge.judge(7, {{1, 2}, {kNan, kInfinity}, {1, -kInfinity}}, [] {
      return std::string("not finite: gradient of wte.weight (rank 1)");
    });
  });
  EXPECT_THAT(
      text,
      AllOf(
          HasSubstr("step 7: the loss is nan (rank 1), the gradient norm is"),
          HasSubstr("(rank 1, 2)"),
          HasSubstr("gradient of wte.weight (rank 1)"),
          HasSubstr("\"not_finite\": \"skip\"")));
}

TEST(BadSteps, ALossAloneIsEnough) {
  BadStepJudge judge{BadStepPolicy{}};
  EXPECT_THAT(
      message_of<AgreedError>([&] {
        judge.judge(1, {{kInfinity, 1}}, nowhere);
      }),
      HasSubstr("the loss is inf (rank 0)"));
}

TEST(BadSteps, SkippedUpdatesAreCountedAndLimitedInARow) {
  BadStepJudge judge(skipping(0, 2));
  int step = 0;
  for (int round = 0; round < 5; ++round) {
    EXPECT_THAT(judge.judge(++step, {{kNan, 1}}, nowhere), HasSubstr("loss is nan"));
    EXPECT_THAT(judge.judge(++step, {{1, kNan}}, nowhere), HasSubstr("gradient norm is nan"));
    EXPECT_TRUE(judge.in_doubt());
    EXPECT_EQ(judge.judge(++step, {{1, 1}}, nowhere), "");
    EXPECT_FALSE(judge.in_doubt());
  }
  EXPECT_EQ(judge.skipped(), 10);
  judge.judge(++step, {{kNan, 1}}, nowhere);
  judge.judge(++step, {{kNan, 1}}, nowhere);
  EXPECT_THAT(
      message_of<AgreedError>([&] {
        judge.judge(18, {{kNan, 1}}, nowhere);
      }),
      AllOf(
          HasSubstr("step 18"),
          HasSubstr("update 3 in a row"),
          HasSubstr("allows 2"),
          HasSubstr("from before the update of step 15")));
}

TEST(BadSteps, ASpikeIsSkippedAndLeavesTheRunningNormAlone) {
  BadStepJudge judge(skipping(3));
  for (int step = 1; step <= 10; ++step) {
    EXPECT_EQ(judge.judge(step, {{1, step == 4 ? 100.0 : 2.0}}, nowhere), "")
        << "too early to tell a spike: " << step;
  }
  // The mean so far is 11.8.
  EXPECT_EQ(judge.judge(11, {{1, 35.0}}, nowhere), "");
  EXPECT_THAT(
      judge.judge(12, {{1, 1e4}, {1, 1}}, nowhere), HasSubstr("the gradient norm is 10000"));
  EXPECT_THAT(judge.judge(13, {{1, 1e4}}, nowhere), HasSubstr("bad_steps.spike 3"));
  EXPECT_EQ(judge.judge(14, {{1, 2.0}}, nowhere), "");
  EXPECT_EQ(judge.skipped(), 2);
}

TEST(BadSteps, TheRunningNormFollows) {
  BadStepJudge judge(skipping(2));
  for (int step = 1; step <= 200; ++step) {
    EXPECT_EQ(judge.judge(step, {{1, std::pow(1.03, step)}}, nowhere), "") << step;
  }
}

TEST(BadSteps, ACheckpointKeepsTheJudgement) {
  BadStepJudge before(skipping(3, 1));
  for (int step = 1; step <= 20; ++step) {
    before.judge(step, {{1, 2.0 + step % 3}}, nowhere);
  }
  before.judge(21, {{kNan, 1}}, nowhere);
  BadStepJudge after(skipping(3, 1));
  after.set_state(before.to_json(), "a checkpoint");
  EXPECT_EQ(after.skipped(), 1);
  EXPECT_EQ(after.to_json(), before.to_json());
  EXPECT_THROW(after.judge(22, {{1, 1e3}}, nowhere), AgreedError);
}

TEST(BadSteps, RefusesAPolicyOutOfRange) {
  for (const double spike : {0.5, 1.0, -1.0, kNan, kInfinity}) {
    EXPECT_THAT(
        message_of<ConfigError>([&] { BadStepJudge judge(skipping(spike)); }),
        HasSubstr("'bad_steps.spike'"));
  }
  EXPECT_THAT(
      message_of<ConfigError>([] {
        BadStepJudge judge(BadStepPolicy{"ignore", 0, 1});
      }),
      HasSubstr("'bad_steps.not_finite'"));
}

} // namespace
} // namespace tessera::cli
