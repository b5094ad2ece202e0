#include "cli/launch/run_child.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <system_error>

#include <sys/wait.h>

#include "tessera/base/child_process.h"
#include "tessera/base/error.h"

namespace tessera::cli {

namespace {

using Clock = std::chrono::steady_clock;

/// Blocks the signals that the launcher handles, so that it can wait for them one by one.
class BlockedSignals {
 public:
  BlockedSignals() {
    sigemptyset(&signals_);
    for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGCHLD}) {
      sigaddset(&signals_, signal);
    }
    pthread_sigmask(SIG_BLOCK, &signals_, &before_);
    // Whoever started the launcher may ignore SIGCHLD, which is inherited; the system would then
    // throw away how the child ended.
    struct sigaction usual {};
    usual.sa_handler = SIG_DFL;
    sigaction(SIGCHLD, &usual, &child_before_);
  }
  ~BlockedSignals() {
    sigaction(SIGCHLD, &child_before_, nullptr);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  BlockedSignals(const BlockedSignals&) = delete;
  BlockedSignals& operator=(const BlockedSignals&) = delete;

  const sigset_t& before() const {
    return before_;
  }
  /// Returns the next signal, or 0 when none came within `wait`.
  int next(std::chrono::milliseconds wait) const {
    const timespec time{wait.count() / 1000, wait.count() % 1000 * 1'000'000};
    const int signal = sigtimedwait(&signals_, nullptr, &time);
    return signal > 0 ? signal : 0;
  }

 private:
  sigset_t signals_{};
  sigset_t before_{};
  struct sigaction child_before_ {};
};

pid_t start(const std::vector<std::string>& command, const sigset_t& signals) {
  // Ctrl-C reaches only the launcher, which then asks the ranks to end.
  const StartedChild child = start_child({.words = command, .guarded = true, .blocked = &signals});
  if (child.error != 0) {
    throw Error(
        str("cannot start '",
            command[0],
            "': ",
            std::system_category().message(child.error),
            child.error == ENOENT ? " (Debian package openmpi-bin)" : ""));
  }
  return child.pid;
}

} // namespace

RunOutcome run_child(
    const std::vector<std::string>& command,
    std::chrono::seconds grace,
    const std::function<bool()>& enough) {
  constexpr std::chrono::seconds kLastGrace(5);
  const BlockedSignals signals;
  const pid_t child = start(command, signals.before());
  RunOutcome outcome;
  int sent = 0; // the last signal that was sent to the child
  auto deadline = Clock::time_point::max();
  auto asked = Clock::time_point::min();
  const auto send = [&](int signal, std::chrono::seconds patience) {
    kill(child, signal);
    sent = signal;
    deadline = Clock::now() + patience;
  };
  while (true) {
    int status = 0;
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == child) {
      outcome.exit_status = shell_status(status);
      return outcome;
    }
    if (ended < 0 && errno != EINTR) {
      throw Error(str(
          "launch: how '", command[0], "' ended is lost: ", std::system_category().message(errno)));
    }
    const int signal = signals.next(std::chrono::milliseconds(500));
    if (signal == SIGTERM || signal == SIGINT || signal == SIGHUP) {
      outcome.asked_to_end = true;
      // timeout(1) signals its child and then the group that the child is in: that is one wish.
      constexpr std::chrono::milliseconds kOneWish(200);
      if (sent == 0) {
        asked = Clock::now();
        std::fprintf(
            stderr,
            "tessera: asked to end; waiting at most %lld s for the ranks "
            "(once more to end them now)\n",
            static_cast<long long>(grace.count()));
        send(SIGUSR1, grace);
      } else if (sent == SIGUSR1 && Clock::now() - asked > kOneWish) {
        send(SIGTERM, kLastGrace);
      }
    } else if (sent != 0 && Clock::now() >= deadline) {
      if (sent == SIGUSR1) {
        send(SIGTERM, kLastGrace);
      } else {
        send(SIGKILL, kLastGrace);
      }
    } else if (sent == 0 && enough && enough()) {
      send(SIGTERM, grace);
    }
  }
}

} // namespace tessera::cli
