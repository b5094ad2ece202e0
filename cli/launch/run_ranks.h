#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "cli/launch/run_child.h"

namespace tessera::cli {

/// Runs a command of mpirun_command as run_child does, and takes the word of the ranks where it and
/// mpirun's differ: when all ranks of this host's run ended with status 0 and mpirun with another
/// one, though nobody asked it to end, says so on the standard error and returns 0. mpirun ends
/// with 1, without a word under -q, where a rank ends well without MPI_Finalize, and now and then
/// where it misses that a rank called it. Each rank's script (kRankScript) adds a line to a
/// temporary file that TESSERA_RANK_ENDS names; ranks on other hosts cannot, and mpirun's status
/// stands. Throws: Error when the command cannot be started, naming it. Threads: as run_child; no
/// other thread may use the environment.
RunOutcome run_ranks(const std::vector<std::string>& command, std::chrono::seconds grace);

} // namespace tessera::cli
