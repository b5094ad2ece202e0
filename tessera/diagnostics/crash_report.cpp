#include "tessera/diagnostics/crash_report.h"

#include <atomic>
#include <csignal>
#include <cstdlib>

#include <unistd.h>

#include <poll.h>

#include "tessera/base/deadline.h"
#include "tessera/diagnostics/activity.h"
#include "tessera/diagnostics/activity_board.h"

namespace tessera::diagnostics {

namespace {

void report_death(const ActivityBoard::Neighbour& dead) noexcept {
  Line line;
  line.add("tessera: rank ").add(std::int64_t{dead.rank});
  line.add(" (process ").add(std::int64_t{dead.process->pid()}).add(" on ");
  line.add(dead.host).add(") has died; it was in ");
  describe(dead.page(), line);
  line.add("\n");
  const auto written = ::write(STDERR_FILENO, line.text().data(), line.text().size());
  static_cast<void>(written);
}

// mpirun signals a rank's whole process group, and the launcher's script passes the signal on, so
// that it comes twice. The second one reaches another thread while the first is still writing.
void wait_for_the_first_signal() noexcept {
  static std::atomic<bool> signalled{false};
  if (signalled.exchange(true)) {
    ::poll(nullptr, 0, 1000); // the thread that reports ends the process sooner
  }
}

extern "C" void report_deaths_and_end(int number) {
  wait_for_the_first_signal();
  if (const ActivityBoard* board = ActivityBoard::published()) {
    board->page().left.store(1);
    for (const ActivityBoard::Neighbour& other : board->neighbours()) {
      ActivityPage& page = other.page();
      if (page.left.load() == 0 && other.process->ended() && page.death_reported.exchange(1) == 0) {
        report_death(other);
      }
    }
  }
  std::signal(number, SIG_DFL);
  ::raise(number);
}

bool install() {
  struct sigaction now {};
  if (::sigaction(SIGTERM, nullptr, &now) == 0 && (now.sa_flags & SA_SIGINFO) == 0 &&
      now.sa_handler == SIG_DFL) {
    std::signal(SIGTERM, report_deaths_and_end);
  }
  return std::atexit([] { activity::end_program(); }) == 0;
}

} // namespace

bool claim_failure_report(std::chrono::milliseconds patience) noexcept {
  const ActivityBoard* board = ActivityBoard::published();
  auto* failure = board == nullptr ? nullptr : &board->first_page().failure;
  const auto wait_for = [&](std::uint32_t state, std::chrono::milliseconds time) {
    const Deadline deadline(time);
    while ((failure == nullptr || failure->load() < state) && !deadline.passed()) {
      ::poll(nullptr, 0, 2);
    }
  };
  wait_for(1, patience);
  std::uint32_t nobody = 0;
  if (failure == nullptr || failure->compare_exchange_strong(nobody, 1)) {
    return true;
  }
  wait_for(2, std::chrono::seconds(1));
  return false;
}

void failure_reported() noexcept {
  if (const ActivityBoard* board = ActivityBoard::published()) {
    board->first_page().failure.store(2);
  }
}

void report_deaths_on_sigterm() {
  static const bool once = install();
  static_cast<void>(once);
}

} // namespace tessera::diagnostics
