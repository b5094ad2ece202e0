#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/runtime/task.h"
#include "tessera/runtime/worker.h"
#include "tessera/schedule/schedule.h"

namespace tessera::runtime {

struct SuspendedTask {
  Worker* worker = nullptr; // that holds it
  std::shared_ptr<Task> task;
};

/// The tasks of a step on this rank, by what they wait for.
struct StepTasks {
  explicit StepTasks(int microbatches);

  schedule::Progress progress; // pp rank 0: of each microbatch
  std::vector<std::shared_ptr<Task>> roots; // by microbatch, while they run
  std::deque<std::shared_ptr<Task>> ready; // requests that have not begun
  std::vector<SuspendedTask> suspended;

  int microbatches() const {
    return static_cast<int>(roots.size());
  }
  /// pp rank 0: returns whether every call of the step function has returned.
  bool root_done() const;
  /// Returns the suspended task of this id, or nullptr.
  const SuspendedTask* find_suspended(std::uint64_t id) const;
  /// Returns the task of the lowest microbatch that was interrupted (Task::gave_way), or nullptr.
  const SuspendedTask* interrupted() const;
  /// Takes a task out of `ready` and `suspended`.
  void remove(const std::shared_ptr<Task>& task);
};

/// A turn that a TurnSource chose: the task that gets the baton.
struct Choice {
  std::shared_ptr<Task> task; // nullptr: made from `request`, or of the step function
  Worker* worker = nullptr; // that holds the task, when it is suspended
  std::optional<Fields> request; // of a task that no message asks for
  int source = -1; // of `request`: global rank that the answer goes to
  int microbatch = 0;
  Phase phase = Phase::kForward;
  std::uint64_t key = 0; // names the turn, equal on all replicas
  /// The task must not run, and fails with this text.
  std::optional<std::string> refusal;

  bool resumes() const {
    return worker != nullptr;
  }
};

} // namespace tessera::runtime
