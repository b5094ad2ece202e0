#pragma once

#include <string>

namespace tessera::cli::doctor {

struct MpiFacts {
  std::string provider; // "Open MPI v4.1.4 (MPI 3.1)"
  std::string thread_level; // granted: single funneled serialized multiple
  int rank = 0;
  int size = 1;
};

/// Starts MPI, requests the highest thread level and returns the one that was granted. Unlike
/// comm::mpi_world it accepts a lower one. MPI is finalised when the program exits.
/// Throws: Error when MPI cannot be started.
MpiFacts start_mpi();

} // namespace tessera::cli::doctor
