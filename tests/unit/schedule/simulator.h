#pragma once

#include <random>
#include <string>
#include <vector>

#include "tessera/schedule/schedule.h"

namespace tessera::schedule::test {

/// What may happen to a microbatch without the schedule's doing.
enum class Event {
  kAskBackward, // kForward -> kReady: the step function calls backward
  kFinish // kForward or kBackward -> kDone: the step function returns
};

struct Happening {
  int microbatch = 0;
  Event event = Event::kFinish;
};

/// What a step's microbatches do.
enum class StepKind {
  kTraining, // every microbatch calls backward once
  kEvaluation, // none does
  kMixed // each may or may not
};

/// Starts everything the schedule allows, as the root does before it waits;
/// appends the actions to `started`. Fails the test when an action is not
/// possible in its state.
void start_all(const Schedule& schedule, Progress& progress, std::vector<Action>& started);

/// What can happen next.
std::vector<Happening> possible(const Progress& progress, StepKind kind);
void happen(const Happening& happening, Progress& progress);

bool all_done(const Progress& progress);
/// Started and not done.
int in_flight(const Progress& progress);
/// Forward or backward running.
int running(const Progress& progress);

Progress fresh(int microbatches);

/// Runs a step in which one thing happens at a time, drawn from `random`;
/// `check` is called after every start. Returns what was started.
template <typename Check>
std::vector<Action> run_step(
    const Schedule& schedule,
    int microbatches,
    StepKind kind,
    std::mt19937& random,
    Check check) {
  Progress progress = fresh(microbatches);
  std::vector<Action> started;
  start_all(schedule, progress, started);
  check(progress);
  while (true) {
    const auto events = possible(progress, kind);
    if (events.empty()) {
      return started; // done, or stuck: the caller looks
    }
    happen(events[random() % events.size()], progress);
    start_all(schedule, progress, started);
    check(progress);
  }
}

} // namespace tessera::schedule::test
