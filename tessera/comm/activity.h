#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "tessera/comm/process_group.h"
#include "tessera/comm/world.h"

/// What each rank of a node does, in memory that the others read when it does
/// not answer or has died. A process has one such page (in-process worlds have
/// none: every function is harmless then). Writing costs some copied bytes.
///
/// Whoever is ended by SIGTERM, which is how MPI's launcher brings a job down
/// after one rank's death, first says which rank died and in what, unless the
/// script has a handler of its own for that signal.
namespace tessera::comm::activity {

/// Makes this rank's page and maps those of its node; a page that cannot be
/// mapped is left out. Collective over the world. Threads: step thread only.
void share(World& world, const ProcessGroup& everybody);
/// In good order, or after an error that tells of this rank: its end is no
/// death that others have to report. Not collective. Threads: any thread.
void leave() noexcept;

/// Whether this rank is the first of its node to report that the job fails: one
/// message is enough, and a rank that fails because another did has a worse one.
/// A rank with `patience` first gives others that time to be it. One that is not
/// the first returns when the first has called `failure_reported`, or after a
/// second. Alone on its node, or before `share`, a rank is the first after its
/// patience. Not collective. Threads: any thread.
bool reports_failure(std::chrono::milliseconds patience) noexcept;
void failure_reported() noexcept;

// Of this rank. Not collective. Threads: that with the baton. `module` is ""
// for the step function.
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
/// No task, inside a step.
void waits_for_requests(std::int64_t step) noexcept;
/// Outside of steps; `doing` may say what ("saves checkpoint 'step_3'").
void script(std::int64_t steps_done, const std::string& doing = {}) noexcept;

/// A collective, for as long as it lives. Threads: any thread; of several at
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

/// "step 2, module 'h.3', microbatch 1, forward; in all_reduce of group 'dp'";
/// "" for a rank of another node. Threads: any thread.
std::string of_rank(int rank);
/// "; on this node: rank 0: ...; rank 1: ..." or "". Threads: any thread.
std::string of_node();

} // namespace tessera::comm::activity
