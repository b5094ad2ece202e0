#pragma once

namespace tessera::comm::mpi {

/// Starts MPI with MPI_THREAD_MULTIPLE when it is not yet running; finalised at
/// exit. Threads: the main thread.
/// Throws: CommError when MPI grants less than MPI_THREAD_MULTIPLE.
void start_mpi();

} // namespace tessera::comm::mpi
