#include "cli/launch/launch_run.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <system_error>

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fcntl.h>

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

/// Runs in the child and executes the command. If that fails, it writes errno to `report`, from
/// which the parent reads it.
[[noreturn]] void
become(std::vector<char*>& arguments, const sigset_t& signals, pid_t parent, int report) {
  // The child gets a process group of its own, so that Ctrl-C reaches only the launcher,
  // which then asks the ranks to end.
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) {
    _exit(1); // the launcher died before prctl, so no signal will come
  }
  // A background process group that reads from the terminal would be stopped.
  if (isatty(STDIN_FILENO) != 0) {
    const int null = open("/dev/null", O_RDONLY);
    dup2(null, STDIN_FILENO);
  }
  pthread_sigmask(SIG_SETMASK, &signals, nullptr);
  execvp(arguments[0], arguments.data());
  const int error = errno;
  [[maybe_unused]] const auto written = write(report, &error, sizeof(error));
  _exit(127);
}

pid_t start(const std::vector<std::string>& command, const sigset_t& signals) {
  std::array<int, 2> pipe_ends{};
  if (pipe2(pipe_ends.data(), O_CLOEXEC) != 0) {
    throw Error(str("launch: no pipe: ", std::system_category().message(errno)));
  }
  std::vector<std::string> words = command; // execvp wants char*
  std::vector<char*> arguments;
  for (std::string& word : words) {
    arguments.push_back(word.data());
  }
  arguments.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    become(arguments, signals, parent, pipe_ends[1]);
  }
  close(pipe_ends[1]);
  int error = child < 0 ? errno : 0;
  if (child > 0 && read(pipe_ends[0], &error, sizeof(error)) > 0) {
    waitpid(child, nullptr, 0);
  }
  close(pipe_ends[0]);
  if (error != 0) {
    throw Error(
        str("cannot start '",
            command[0],
            "': ",
            std::system_category().message(error),
            error == ENOENT ? " (Debian package openmpi-bin)" : ""));
  }
  return child;
}

int as_shell(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

} // namespace

RunOutcome run_child(const std::vector<std::string>& command, std::chrono::seconds grace) {
  constexpr std::chrono::seconds kLastGrace(5);
  const BlockedSignals signals;
  const pid_t child = start(command, signals.before());
  RunOutcome outcome;
  int sent = 0; // the last signal that was sent to the child
  auto deadline = Clock::time_point::max();
  const auto send = [&](int signal, std::chrono::seconds patience) {
    kill(child, signal);
    sent = signal;
    deadline = Clock::now() + patience;
  };
  while (true) {
    int status = 0;
    const pid_t ended = waitpid(child, &status, WNOHANG);
    if (ended == child) {
      outcome.exit_status = as_shell(status);
      return outcome;
    }
    if (ended < 0 && errno != EINTR) {
      throw Error(str(
          "launch: how '", command[0], "' ended is lost: ", std::system_category().message(errno)));
    }
    const int signal = signals.next(std::chrono::milliseconds(500));
    if (signal == SIGTERM || signal == SIGINT || signal == SIGHUP) {
      outcome.asked_to_end = true;
      if (sent == 0) {
        std::fprintf(
            stderr,
            "tessera: asked to end; waiting at most %lld s for the ranks "
            "(once more to end them now)\n",
            static_cast<long long>(grace.count()));
        send(SIGUSR1, grace);
      } else if (sent == SIGUSR1) {
        send(SIGTERM, kLastGrace);
      }
    } else if (sent != 0 && Clock::now() >= deadline) {
      if (sent == SIGUSR1) {
        send(SIGTERM, kLastGrace);
      } else {
        send(SIGKILL, kLastGrace);
      }
    }
  }
}

} // namespace tessera::cli
