#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "cli/launch/run_child.h"

namespace tessera::cli {

/// Runs a command of mpirun_command as run_child does, and takes the ranks' word where it differs
/// from mpirun's: when all ranks ended with status 0 without having been asked to end, and mpirun
/// with another status, it says so on the standard error and returns 0. mpirun ends with 1, under
/// -q without a message, when a rank has not called MPI_Finalize; once it did although the rank
/// had. When the run was asked to end and all ranks ended with 75 (stopped with everything saved),
/// it returns 75: mpirun may crash on its way out when it is asked twice. Each rank's script
/// (rank_script.h) adds a line to a temporary file that TESSERA_RANK_ENDS names. Ranks on other
/// hosts cannot, so mpirun's status stands for runs over several hosts.
///
/// Throws: Error when the command cannot be started, naming it.
///
/// Threads: as run_child; no other thread may use the environment.
RunOutcome run_ranks(
    const std::vector<std::string>& command,
    std::chrono::seconds grace,
    const std::function<bool()>& enough = nullptr);

} // namespace tessera::cli
