#include "tessera/comm/backends/mpi/environment.h"

#include <array>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#include <mpi.h>
#include <unistd.h>

#include "tessera/comm/backends/mpi/check.h"
#include "tessera/diagnostics/uncaught_error.h"

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

// By which rank 0 tells the others that it reports an error; MPI_COMM_NULL before MPI has started.
MPI_Comm g_news = MPI_COMM_NULL;

void tell_of_report() {
  if (!mpi_is_running()) {
    return;
  }
  int size = 0;
  MPI_Comm_size(g_news, &size);
  for (int rank = 1; rank < size; ++rank) {
    MPI_Request request = MPI_REQUEST_NULL; // of no bytes; nobody has to receive it
    MPI_Isend(nullptr, 0, MPI_BYTE, rank, 0, g_news, &request);
    MPI_Request_free(&request);
  }
}

bool heard_of_report(std::chrono::milliseconds patience) {
  const auto until = std::chrono::steady_clock::now() + patience;
  while (mpi_is_running() && std::chrono::steady_clock::now() < until) {
    int there = 0;
    MPI_Iprobe(0, 0, g_news, &there, MPI_STATUS_IGNORE);
    if (there != 0) {
      MPI_Recv(nullptr, 0, MPI_BYTE, 0, 0, g_news, MPI_STATUS_IGNORE);
      return true;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
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
  if (g_news == MPI_COMM_NULL) {
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &g_news), "MPI_Comm_dup");
    diagnostics::set_rank_zero_news({tell_of_report, heard_of_report});
  }
}

} // namespace tessera::comm::mpi
