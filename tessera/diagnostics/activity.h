#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tessera::diagnostics {
struct ShownOperation;
}

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
/// Outside of steps; `doing` may say what ("saves checkpoint 'step_3'"). Threads: the script's.
void script(std::int64_t steps_done, const std::string& doing = {}) noexcept;

/// A collective, for as long as the object lives. Threads: any thread; of several at one time the
/// script's is shown, else the first.
class Operation {
 public:
  Operation(std::string_view kind, const std::string& group) noexcept;
  ~Operation();
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

 private:
  ShownOperation* shown_ = nullptr;
};

/// The script's operation has waited for `rank` for some seconds, and will not end before that has
/// come to it; -1: it does not any more. Nothing happens on other threads. Threads: any thread.
void awaits(int rank) noexcept;

/// An operation of another rank of this node.
struct OpposedWait {
  std::string text; // "all_reduce of group 'world'"
  std::uint64_t number = 0; // it is known again by
};
/// Returns the operation in which the script of `rank` waits for this rank (`awaits`), if this
/// thread is the script's, and in an operation of another group, and neither is in a step of a
/// pipeline: neither of the two will end, unless one is about to. Threads: any thread.
std::optional<OpposedWait> opposed_wait(int rank);

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
