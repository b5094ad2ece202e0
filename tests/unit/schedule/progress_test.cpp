#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "tessera/base/error.h"

#include "simulator.h"

namespace tessera::schedule::test {

namespace {

using State = Progress::State;

constexpr int kMostMicrobatches = 16;
constexpr int kMostActive = 18;

// An order in which fewer than `active` microbatches are ever open, drawn at
// random among all such orders' prefixes.
std::vector<Action> random_order(int microbatches, int active, std::mt19937& random) {
  std::vector<int> forwards;
  for (int i = 0; i < microbatches; ++i) {
    forwards.push_back(i);
  }
  std::shuffle(forwards.begin(), forwards.end(), random);
  std::vector<int> open;
  std::vector<Action> order;
  while (!forwards.empty() || !open.empty()) {
    const bool may_open = !forwards.empty() && static_cast<int>(open.size()) < active;
    if (may_open && (open.empty() || random() % 2 == 0)) {
      open.push_back(forwards.back());
      forwards.pop_back();
      order.push_back({open.back(), Phase::kForward});
    } else {
      const std::size_t which = random() % open.size();
      order.push_back({open[which], Phase::kBackward});
      open.erase(open.begin() + static_cast<std::ptrdiff_t>(which));
    }
  }
  return order;
}

std::vector<Action>
order_for(const std::string& kind, int microbatches, int active, std::mt19937& random) {
  return kind == "custom" ? random_order(microbatches, active, random) : std::vector<Action>{};
}

// The cap of each schedule, as schedule.h states it.
int capped(const std::string& kind, const Progress& progress) {
  return kind == "simple" ? running(progress) : in_flight(progress);
}

class EverySchedule : public ::testing::TestWithParam<std::string> {};

// Visits every progress that can be reached from `progress`, once.
void explore(
    const Schedule& schedule,
    const std::string& kind,
    int active,
    Progress progress,
    std::set<std::vector<State>>& seen) {
  std::vector<Action> started;
  start_all(schedule, progress, started);
  if (!seen.insert(progress.states).second) {
    return;
  }
  ASSERT_LE(capped(kind, progress), active);
  const auto events = possible(progress, StepKind::kMixed);
  ASSERT_TRUE(!events.empty() || all_done(progress)) << "stuck";
  for (const Happening& event : events) {
    Progress next = progress;
    happen(event, next);
    explore(schedule, kind, active, std::move(next), seen);
  }
}

TEST_P(EverySchedule, NeverStandsStillInAnyReachableProgress) {
  std::mt19937 random(1);
  for (int microbatches = 1; microbatches <= 6; ++microbatches) {
    for (int active = 1; active <= microbatches + 1; ++active) {
      const auto schedule = make_schedule(
          GetParam(), microbatches, active, order_for(GetParam(), microbatches, active, random));
      std::set<std::vector<State>> seen;
      explore(*schedule, GetParam(), active, fresh(microbatches), seen);
      EXPECT_GT(seen.size(), static_cast<std::size_t>(microbatches));
    }
  }
}

TEST_P(EverySchedule, CompletesUnderRandomFinishOrders) {
  std::mt19937 random(2);
  for (int microbatches = 1; microbatches <= kMostMicrobatches; ++microbatches) {
    for (int active = 1; active <= kMostActive; ++active) {
      const auto schedule = make_schedule(
          GetParam(), microbatches, active, order_for(GetParam(), microbatches, active, random));
      for (int trial = 0; trial < 10; ++trial) {
        const auto started = run_step(
            *schedule, microbatches, StepKind::kTraining, random, [&](const Progress& progress) {
              ASSERT_LE(capped(GetParam(), progress), active);
            });
        // Every phase of every microbatch, so nothing was stuck; none twice,
        // since start_all only allows an action in the state before it.
        ASSERT_EQ(started.size(), 2U * static_cast<unsigned>(microbatches))
            << to_text(started) << " with active " << active;
      }
    }
  }
}

TEST_P(EverySchedule, EvaluationStepsEndWithoutBackward) {
  std::mt19937 random(3);
  for (int microbatches = 1; microbatches <= kMostMicrobatches; ++microbatches) {
    for (int active : {1, 2, kMostActive}) {
      const auto schedule = make_schedule(
          GetParam(), microbatches, active, order_for(GetParam(), microbatches, active, random));
      const auto started =
          run_step(*schedule, microbatches, StepKind::kEvaluation, random, [](const Progress&) {});
      EXPECT_EQ(started.size(), static_cast<std::size_t>(microbatches));
    }
  }
}

// A step function may call backward for a second loss.
TEST_P(EverySchedule, StartsASecondBackward) {
  const auto order = parse_order("0F 0B 1F 1B");
  const auto schedule =
      make_schedule(GetParam(), 2, 2, GetParam() == "custom" ? order : std::vector<Action>{});
  const Progress again{{State::kReady, State::kDone}};
  EXPECT_EQ(schedule->next(again), (Action{0, Phase::kBackward}));
}

TEST_P(EverySchedule, UsesTheWholeCap) {
  const int active = 3;
  const auto schedule = make_schedule(
      GetParam(),
      4,
      active,
      GetParam() == "custom" ? parse_order("0F 1F 2F 0B 3F 1B 2B 3B") : std::vector<Action>{});
  Progress progress = fresh(4);
  std::vector<Action> started;
  start_all(*schedule, progress, started);
  EXPECT_EQ(to_text(started), "0F 1F 2F");
}

TEST_P(EverySchedule, AProgressOfAnotherSizeIsABug) {
  const auto schedule = make_schedule(
      GetParam(), 1, 1, GetParam() == "custom" ? parse_order("0F 0B") : std::vector<Action>{});
  EXPECT_THROW(schedule->next(fresh(2)), InternalError);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds,
    EverySchedule,
    ::testing::Values("simple", "interleaved", "custom"),
    [](const auto& kind) { return kind.param; });

TEST(Simple, NoBackwardBeforeTheLastForwardEnds) {
  std::mt19937 random(4);
  for (int microbatches = 1; microbatches <= kMostMicrobatches; ++microbatches) {
    for (int active = 1; active <= kMostActive; ++active) {
      const auto schedule = make_schedule("simple", microbatches, active);
      const auto started = run_step(
          *schedule, microbatches, StepKind::kTraining, random, [](const Progress& progress) {
            const auto has = [&](State state) {
              return std::count(progress.states.begin(), progress.states.end(), state) > 0;
            };
            const bool forwards = has(State::kWaiting) || has(State::kForward);
            const bool backwards = has(State::kBackward) || has(State::kDone);
            ASSERT_FALSE(forwards && backwards);
          });
      for (int i = 0; i < microbatches; ++i) {
        EXPECT_EQ(started[static_cast<std::size_t>(i)], (Action{i, Phase::kForward}));
      }
    }
  }
}

TEST(Simple, StartsReadyBackwardsLowestFirst) {
  const auto schedule = make_schedule("simple", 3, 3);
  const Progress progress{{State::kDone, State::kReady, State::kReady}};
  EXPECT_EQ(schedule->next(progress), (Action{1, Phase::kBackward}));
}

TEST(Interleaved, ReadyBackwardGoesBeforeTheNextForward) {
  const auto schedule = make_schedule("interleaved", 4, 4);
  const Progress progress{{State::kForward, State::kReady, State::kReady, State::kWaiting}};
  EXPECT_EQ(schedule->next(progress), (Action{1, Phase::kBackward}));
}

TEST(Interleaved, NextForwardWhenNothingIsReady) {
  const auto schedule = make_schedule("interleaved", 4, 3);
  EXPECT_EQ(
      schedule->next({{State::kBackward, State::kForward, State::kWaiting, State::kWaiting}}),
      (Action{2, Phase::kForward}));
  EXPECT_EQ(
      schedule->next({{State::kBackward, State::kForward, State::kForward, State::kWaiting}}),
      std::nullopt);
}

// Seed documentation, figure of the interleaved pipeline: a finished forward's
// backward comes before the next forward.
TEST(Interleaved, OneWorkerAlternates) {
  const auto schedule = make_schedule("interleaved", 3, 1);
  std::mt19937 random(5);
  const auto started = run_step(*schedule, 3, StepKind::kTraining, random, [](const Progress&) {});
  EXPECT_EQ(to_text(started), "0F 0B 1F 1B 2F 2B");
}

TEST(Custom, KeepsItsOrderWhateverFinishesFirst) {
  std::mt19937 random(6);
  for (int trial = 0; trial < 200; ++trial) {
    const int microbatches = 1 + static_cast<int>(random() % kMostMicrobatches);
    const int active = 1 + static_cast<int>(random() % kMostActive);
    const auto order = random_order(microbatches, active, random);
    const auto schedule = make_schedule("custom", microbatches, active, order);
    const auto started =
        run_step(*schedule, microbatches, StepKind::kTraining, random, [](const Progress&) {});
    EXPECT_EQ(to_text(started), to_text(order));
  }
}

TEST(Custom, WaitsForTheBackwardThatIsNext) {
  const auto schedule = make_schedule("custom", 2, 2, parse_order("0F 1F 1B 0B"));
  EXPECT_EQ(schedule->next({{State::kReady, State::kForward}}), std::nullopt);
  EXPECT_EQ(schedule->next({{State::kReady, State::kReady}}), (Action{1, Phase::kBackward}));
}

} // namespace

} // namespace tessera::schedule::test
