#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace tessera::cli {

struct RunOutcome {
  int exit_status = 0; // as in a shell: 128 + signal when killed
  bool asked_to_end = false; // whether the launcher received a signal
};

/// Runs a command as a child process and waits for it. On the first SIGTERM, SIGINT or
/// SIGHUP it sends SIGUSR1 to the child, which asks the ranks to end in good order;
/// on a second one, or after `grace`, it sends SIGTERM, and five seconds later
/// SIGKILL. The child gets SIGTERM when this process dies, and when `enough`, which is asked twice
/// a second, says so.
///
/// Throws: Error when the command cannot be started, naming it.
///
/// Threads: one at a time; no other thread of the process may receive these signals.
RunOutcome run_child(
    const std::vector<std::string>& command,
    std::chrono::seconds grace,
    const std::function<bool()>& enough = nullptr);

} // namespace tessera::cli
