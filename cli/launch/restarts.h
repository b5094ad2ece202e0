#pragma once

#include <functional>

#include "cli/exit_status.h"
#include "cli/launch/run_child.h"

namespace tessera::cli {

/// Returns whether the same command may get further when it is started again: it
/// failed, nobody asked it to end, it did not stop with everything saved (status
/// 75), and it did not fail in a way that repeats (2 wrong usage, 126 not
/// executable, 127 not found).
bool restart_may_help(const RunOutcome& outcome);

/// Calls `run(0)`, then `run(1)` to `run(most)` as long as a restart may help. It
/// reports each restart on stderr and returns the last outcome.
RunOutcome run_with_restarts(const std::function<RunOutcome(int restart)>& run, int most);

} // namespace tessera::cli
