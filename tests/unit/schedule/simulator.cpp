#include "simulator.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace tessera::schedule::test {

using State = Progress::State;

void start_all(const Schedule& schedule, Progress& progress, std::vector<Action>& started) {
  while (const auto action = schedule.next(progress)) {
    const bool forward = action->phase == Phase::kForward;
    State& state = progress.states.at(static_cast<std::size_t>(action->microbatch));
    ASSERT_EQ(state, forward ? State::kWaiting : State::kReady) << to_text({*action});
    state = forward ? State::kForward : State::kBackward;
    started.push_back(*action);
  }
}

std::vector<Happening> possible(const Progress& progress, StepKind kind) {
  std::vector<Happening> events;
  for (int i = 0; i < static_cast<int>(progress.states.size()); ++i) {
    const State state = progress.states[static_cast<std::size_t>(i)];
    if (state == State::kForward && kind != StepKind::kEvaluation) {
      events.push_back({i, Event::kAskBackward});
    }
    if (state == State::kBackward || (state == State::kForward && kind != StepKind::kTraining)) {
      events.push_back({i, Event::kFinish});
    }
  }
  return events;
}

void happen(const Happening& happening, Progress& progress) {
  progress.states[static_cast<std::size_t>(happening.microbatch)] =
      happening.event == Event::kAskBackward ? State::kReady : State::kDone;
}

bool all_done(const Progress& progress) {
  return std::all_of(progress.states.begin(), progress.states.end(), [](State state) {
    return state == State::kDone;
  });
}

int in_flight(const Progress& progress) {
  return static_cast<int>(
      std::count_if(progress.states.begin(), progress.states.end(), [](State state) {
        return state != State::kWaiting && state != State::kDone;
      }));
}

int running(const Progress& progress) {
  return static_cast<int>(
      std::count_if(progress.states.begin(), progress.states.end(), [](State state) {
        return state == State::kForward || state == State::kBackward;
      }));
}

Progress fresh(int microbatches) {
  return {std::vector<State>(static_cast<std::size_t>(microbatches), State::kWaiting)};
}

} // namespace tessera::schedule::test
