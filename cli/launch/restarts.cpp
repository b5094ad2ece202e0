#include "cli/launch/restarts.h"

#include <cstdio>

namespace tessera::cli {

bool restart_may_help(const RunOutcome& outcome) {
  constexpr int kNotExecutable = 126;
  constexpr int kNotFound = 127;
  return !outcome.asked_to_end && outcome.exit_status != 0 &&
         outcome.exit_status != kResumableStatus && outcome.exit_status != kWrongUsageStatus &&
         outcome.exit_status != kNotExecutable && outcome.exit_status != kNotFound;
}

RunOutcome run_with_restarts(const std::function<RunOutcome(int restart)>& run, int most) {
  RunOutcome outcome = run(0);
  for (int restart = 1; restart <= most && restart_may_help(outcome); ++restart) {
    std::fprintf(
        stderr,
        "tessera: the run ended with exit status %d; restart %d of %d\n",
        outcome.exit_status,
        restart,
        most);
    outcome = run(restart);
  }
  return outcome;
}

} // namespace tessera::cli
