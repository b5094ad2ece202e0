#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support.h"

namespace tessera::plans::test {

namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::vector<std::string> kModules = {"", "encoder", "decoder"};

template <typename Change>
std::string error_after(Change change) {
  Plan plan = sample();
  change(plan);
  return error_of([&] { validate(plan); });
}

TEST(Plan, AValidPlan) {
  EXPECT_EQ(error_after([](Plan&) {}), "no error");
  EXPECT_EQ(error_of([] { validate(sample(), kModules); }), "no error");
  EXPECT_EQ(error_of([] { validate(Plan{}); }), "no error");
}

TEST(Plan, EveryFieldIsChecked) {
  EXPECT_THAT(error_after([](Plan& plan) { plan.version = 2; }), HasSubstr("version is 2"));
  EXPECT_THAT(
      error_after([](Plan& plan) { plan.degrees.pipeline = 0; }),
      HasSubstr("degrees.pipeline is 0"));
  EXPECT_THAT(
      error_after([](Plan& plan) { plan.degrees.tensor = -1; }), HasSubstr("degrees.tensor is -1"));
  EXPECT_THAT(
      error_after([](Plan& plan) { plan.degrees.reduced_data = 0; }),
      HasSubstr("degrees.reduced_data is 0"));
  EXPECT_THAT(
      error_after([](Plan& plan) { plan.placement = "DDP"; }),
      AllOf(HasSubstr("placement"), HasSubstr("\"DDP\"")));
  EXPECT_THAT(
      error_after([](Plan& plan) { plan.schedule = "gpipe"; }),
      AllOf(HasSubstr("schedule"), HasSubstr("\"gpipe\"")));
  EXPECT_THAT(
      error_after([](Plan& plan) { plan.microbatches = 0; }), HasSubstr("microbatches is 0"));
  EXPECT_THAT(
      error_after([](Plan& plan) { plan.active_microbatches = -1; }),
      HasSubstr("active_microbatches is -1"));
  EXPECT_THAT(
      error_after([](Plan& plan) { plan.partition["decoder"] = 2; }),
      AllOf(HasSubstr("\"decoder\" is 2"), HasSubstr("0 to 1")));
  EXPECT_THAT(
      error_after([](Plan& plan) { plan.custom_schedule = "0F 0B"; }), HasSubstr("\"simple\""));
  EXPECT_THAT(
      error_after([](Plan& plan) { plan.schedule = "custom"; }), HasSubstr("0F is missing"));
}

TEST(Plan, NamesTheModulesThatHaveNoEntry) {
  auto modules = kModules;
  modules.emplace_back("head");
  EXPECT_THAT(
      error_of([&] { validate(sample(), modules); }),
      AllOf(HasSubstr("no entry for \"head\""), HasSubstr("4 modules")));
}

TEST(Plan, NamesTheEntriesThatAreNoModules) {
  EXPECT_THAT(
      error_of([] {
        validate(sample(), {"", "encoder"});
      }),
      HasSubstr("partition names \"decoder\", which the model does not have"));
}

TEST(Plan, LongListsAreCutShort) {
  std::vector<std::string> modules = kModules;
  for (int i = 0; i < 9; ++i) {
    modules.push_back("layers." + std::to_string(i));
  }
  EXPECT_THAT(
      error_of([&] { validate(sample(), modules); }),
      AllOf(HasSubstr("\"layers.4\" and 4 more"), Not(HasSubstr("layers.5"))));
}

TEST(Plan, ActiveMicrobatchesByDefault) {
  EXPECT_EQ(sample().effective_active_microbatches(), 3);
  EXPECT_EQ((Plan{.degrees = {.pipeline = 4}}.effective_active_microbatches()), 6);
  constexpr int kMost = std::numeric_limits<int>::max();
  EXPECT_EQ((Plan{.degrees = {.pipeline = kMost}}.effective_active_microbatches()), kMost);
}

TEST(Plan, MakesItsSchedule) {
  Plan plan = sample();
  plan.schedule = "custom";
  plan.microbatches = 2;
  plan.custom_schedule = "1F 0F 0B 1B";
  using State = schedule::Progress::State;
  EXPECT_EQ(
      make_schedule(plan)->next({{State::kWaiting, State::kWaiting}}),
      (schedule::Action{1, schedule::Phase::kForward}));
}

TEST(Plan, MicrobatchesHaveALimit) {
  Plan plan = test::sample();
  plan.microbatches = 1'000'000;
  EXPECT_EQ(test::error_of([&] { validate(plan); }), "no error");
  plan.microbatches = 1'000'001;
  EXPECT_THAT(
      test::error_of([&] { validate(plan); }), ::testing::HasSubstr("must be at most 1000000"));
}

} // namespace

} // namespace tessera::plans::test
