#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "tessera/recompute/keeper.h"

namespace tessera::offload {

/// Which backwards come soon on this rank: the order of tasks is that of the step of the same kind
/// before. Where this step runs another order the answers are wrong, and no more than that: a task
/// that has begun is taken out of what is expected, wherever it stood.
/// Threads: one at a time.
class TaskOrder {
 public:
  using Task = recompute::PipelineTask;

  /// Keeps the order that the step before had, and expects that of the last one of `kind`; nothing
  /// for a kind that is new.
  void step_begins(std::uint64_t kind);
  void step_ended();
  void task_begins(Task task);
  /// Sets the tasks to expect.
  void expect(std::vector<Task> tasks);

  /// Returns the microbatches whose backward is one of the next `horizon` tasks behind the one that
  /// runs, in their order, each once.
  std::vector<int> backwards_within(int horizon) const;
  /// Returns the same for the tasks that follow the last backward of `microbatch` that has begun,
  /// whether or not they have begun too; nothing where the step before had no such backward.
  std::vector<int> backwards_behind(int microbatch, int horizon) const;

 private:
  std::map<std::uint64_t, std::vector<Task>> seen_; // by kind
  std::uint64_t kind_ = 0;
  std::vector<Task> running_; // tasks of this step, in order
  std::vector<Task> expected_; // that have not begun
  std::vector<Task> before_; // those of the step before
};

} // namespace tessera::offload
