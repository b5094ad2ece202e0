#include "tessera/comm/backends/mpi/environment.h"

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <mpi.h>
#include <unistd.h>

#include "tessera/comm/backends/mpi/check.h"

namespace tessera::comm::mpi {

namespace {

// MPI_Finalize waits for all ranks. One that ends with an error must not wait
// for others that train on and, in turn, wait for it.
constexpr unsigned kLeaveSeconds = 3;
int g_exit_status = 0;
std::array<char, 128> g_farewell{};

void leave_at_once(int) {
  const ssize_t written = ::write(STDERR_FILENO, g_farewell.data(), std::strlen(g_farewell.data()));
  static_cast<void>(written);
  ::_exit(g_exit_status);
}

void finalize_at_exit(int status, void*) {
  if (!mpi_is_running()) {
    return;
  }
  if (status != 0) {
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    std::snprintf(
        g_farewell.data(),
        g_farewell.size(),
        "rank %d ended with status %d while other ranks still ran\n",
        rank,
        status);
    g_exit_status = status;
    std::signal(SIGALRM, leave_at_once);
    sigset_t alarm_only;
    sigemptyset(&alarm_only);
    sigaddset(&alarm_only, SIGALRM);
    ::pthread_sigmask(SIG_UNBLOCK, &alarm_only, nullptr);
    ::alarm(kLeaveSeconds);
  }
  MPI_Finalize();
  ::alarm(0);
}

// Open MPI puts long messages over TCP in parts that the receiver asks for, and what it asks waits
// behind the data that it sends itself: two ranks that send each other 2 MiB at once got half of a
// line's bandwidth. Sent without being asked for, they get nine tenths. Settings of the user are
// not changed.
void prefer_messages_over_tcp() {
  ::setenv("OMPI_MCA_btl_tcp_flags", "send,inplace", /*overwrite=*/0);
}

} // namespace

void start_mpi() {
  int initialized = 0;
  MPI_Initialized(&initialized);
  int provided = MPI_THREAD_SINGLE;
  if (initialized == 0) {
    prefer_messages_over_tcp();
    check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
    ::on_exit(finalize_at_exit, nullptr); // glibc: unlike atexit, with the status
  } else {
    check_mpi(MPI_Query_thread(&provided), "MPI_Query_thread");
  }
  if (provided != MPI_THREAD_MULTIPLE) {
    throw CommError(
        str("MPI grants thread level ",
            provided,
            " where MPI_THREAD_MULTIPLE (",
            MPI_THREAD_MULTIPLE,
            ") is needed; initialise it with MPI_Init_thread and that level, or "
            "use an MPI built with thread support"));
  }
}

} // namespace tessera::comm::mpi
