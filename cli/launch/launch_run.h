#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace tessera::cli {

struct RunOutcome {
  int exit_status = 0; // as a shell counts: 128 + signal when killed
  bool asked_to_end = false; // a signal came for the launcher
};

/// Runs a command as a child and waits for it. On the first SIGTERM, SIGINT or
/// SIGHUP it sends SIGUSR1, which asks the ranks to end in good order; on a
/// second one, or after `grace`, SIGTERM; five seconds later SIGKILL. The child
/// gets SIGTERM when this process dies.
/// Throws: Error when the command cannot be started, naming it.
/// Threads: one at a time; the process must have no other threads that take
/// these signals.
RunOutcome run_child(const std::vector<std::string>& command, std::chrono::seconds grace);

} // namespace tessera::cli
