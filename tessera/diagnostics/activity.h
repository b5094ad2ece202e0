#pragma once

#include <cstdint>
#include <string>
#include <string_view>

/// What this rank does, for the other ranks of its node: they read it when this
/// rank does not answer or has died. Without a published board (in-process
/// worlds) every function does nothing. Not collective.
namespace tessera::diagnostics::activity {

/// This rank ends in good order, or its own error reports its end: its death
/// is nothing that others have to report. Threads: any thread.
void leave() noexcept;
/// This rank's program has come to its end, whether others wait for it or not. Threads: any thread.
void end_program() noexcept;

// Threads: the thread that has the baton. `module` is "" for the step function.
void runs(std::int64_t step, const std::string& module, int microbatch, bool backward) noexcept;
/// The task that runs goes on with its backward.
void turns_backward() noexcept;
/// A task waits for a module that another rank runs, or (rank -1) for the
/// schedule.
void waits(
    std::int64_t step,
    const std::string& module,
    int microbatch,
    bool backward,
    const std::string& target,
    int rank) noexcept;
/// No task runs, inside a step.
void waits_for_requests(std::int64_t step) noexcept;
/// Outside of steps; `doing` may say what ("saves checkpoint 'step_3'").
void script(std::int64_t steps_done, const std::string& doing = {}) noexcept;

/// A collective, for as long as the object lives. Threads: any thread; of several at
/// one time the first is shown.
class Operation {
 public:
  Operation(std::string_view kind, const std::string& group) noexcept;
  ~Operation();
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

 private:
  bool shown_ = false;
};

/// Returns whether the rank is another one of this node and its program has come to its end.
/// Threads: any thread.
bool has_ended_program(int rank) noexcept;
/// What this rank does; "" without a board. Threads: any thread.
std::string of_self();
/// "step 2, module 'h.3', microbatch 1, forward; in all_reduce of group 'dp'";
/// "" for a rank of another node. Threads: any thread.
std::string of_rank(int rank);
/// "; the other ranks of this node: rank 0: ...; rank 1: ..." or "". Threads: any thread.
std::string of_node();

} // namespace tessera::diagnostics::activity
