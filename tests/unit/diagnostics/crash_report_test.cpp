// What a rank says when it is ended because another one has died.
#include "tessera/diagnostics/crash_report.h"

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include <sys/wait.h>
#include <unistd.h>

#include <fcntl.h>
#include <gtest/gtest.h>

#include "tessera/diagnostics/activity_board.h"

namespace tessera::diagnostics {
namespace {

using std::chrono::milliseconds;

struct Pipe {
  Pipe() {
    if (::pipe(ends.data()) != 0) {
      std::abort();
    }
  }
  std::array<int, 2> ends{};
};

void make_full(int file) {
  ::fcntl(file, F_SETFL, O_NONBLOCK);
  const std::string dots(4096, '.');
  while (::write(file, dots.data(), dots.size()) > 0) {
  }
  for (const char dot : dots) {
    if (::write(file, &dot, 1) < 1) {
      break;
    }
  }
  ::fcntl(file, F_SETFL, 0);
}

/// Rank 0: shares its page and dies.
ipc::SegmentAddress address_of_a_dead_rank() {
  const Pipe told;
  const pid_t rank = ::fork();
  if (rank == 0) {
    const ActivityBoard board(0);
    const ipc::SegmentAddress own = board.address();
    if (::write(told.ends[1], &own, sizeof own) == sizeof own) {
      ::pause();
    }
    ::_exit(1);
  }
  ipc::SegmentAddress address;
  if (::read(told.ends[0], &address, sizeof address) != sizeof address) {
    ::_exit(1);
  }
  return address;
}

/// Rank 1: two threads that sleep; nothing that it writes to `errors` comes through yet.
[[noreturn]] void run_the_other_rank(const Pipe& ready, const Pipe& errors) {
  auto board = std::make_unique<ActivityBoard>(1);
  const ipc::SegmentAddress dead = address_of_a_dead_rank();
  board->add(0, "node-x", dead);
  ActivityBoard::publish(std::move(board));
  ::kill(dead.process, SIGKILL);
  ::waitpid(dead.process, nullptr, 0);
  ::dup2(errors.ends[1], STDERR_FILENO);
  ::close(errors.ends[0]);
  ::close(errors.ends[1]);
  report_deaths_on_sigterm();
  std::thread other([] {
    for (;;) {
      ::pause();
    }
  });
  if (::write(ready.ends[1], "r", 1) == 1) {
    for (;;) {
      ::pause();
    }
  }
  ::_exit(1);
}

TEST(CrashReport, ASecondSignalDoesNotCutOffTheReport) {
  const Pipe ready;
  const Pipe errors;
  make_full(errors.ends[1]);
  const pid_t rank = ::fork();
  if (rank == 0) {
    run_the_other_rank(ready, errors);
  }
  ::close(errors.ends[1]);
  char byte = 0;
  ASSERT_EQ(::read(ready.ends[0], &byte, 1), 1);

  // The first thread hangs in its write when the second signal reaches the other one.
  for (int i = 0; i < 2; ++i) {
    ::kill(rank, SIGTERM);
    std::this_thread::sleep_for(milliseconds(100));
  }
  std::string said;
  std::array<char, 4096> part{};
  for (;;) {
    const auto bytes = ::read(errors.ends[0], part.data(), part.size());
    if (bytes <= 0) {
      break;
    }
    said.append(part.data(), static_cast<std::size_t>(bytes));
  }
  int status = 0;
  ::waitpid(rank, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM) << status;
  EXPECT_NE(said.find("tessera: rank 0 (process "), std::string::npos);
  EXPECT_NE(said.find(" on node-x) has died; it was in the script"), std::string::npos);
}

} // namespace
} // namespace tessera::diagnostics
