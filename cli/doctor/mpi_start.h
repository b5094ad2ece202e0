#pragma once

#include <string>

namespace tessera::cli::doctor {

struct MpiFacts {
  std::string provider; // "Open MPI v4.1.4 (MPI 3.1)"
  std::string thread_level; // granted: single funneled serialized multiple
  int rank = 0;
  int size = 1;
};

/// Starts MPI, asking for the highest thread level, and says what it granted;
/// unlike comm::mpi_world it goes on with less. MPI ends at exit.
/// Throws: Error when MPI cannot be started.
MpiFacts start_mpi();

} // namespace tessera::cli::doctor
