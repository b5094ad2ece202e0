#include "tessera/base/child_process.h"

#include <array>
#include <cerrno>
#include <cstring>

#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fcntl.h>

#include "tessera/base/error.h"

namespace tessera {

namespace {

/// What the child needs between its start and exec, made before: the child shares our memory until
/// then, so it must not allocate.
struct Prepared {
  const ChildStart& start;
  std::vector<char*> arguments;
  sigset_t blocked; // by the program
  pid_t parent;
  int report; // the end of a pipe that takes errno
};

void put(int from, int at) {
  if (from == at) {
    fcntl(at, F_SETFD, 0); // or it would be closed by exec
  } else if (from >= 0) {
    dup2(from, at);
  }
}

/// A handler of ours that ran in the child would run on our memory.
void drop_signal_handlers() {
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction now {};
    if (sigaction(signal, nullptr, &now) == 0 && now.sa_handler != SIG_IGN &&
        now.sa_handler != SIG_DFL) {
      now = {};
      now.sa_handler = SIG_DFL;
      sigaction(signal, &now, nullptr);
    }
  }
}

void guard(pid_t parent) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) {
    _exit(1); // the parent died before prctl, so no signal will come
  }
  // A background process group that reads from the terminal would be stopped.
  if (isatty(STDIN_FILENO) != 0) {
    put(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
  }
}

[[noreturn]] void become(const Prepared& prepared) {
  drop_signal_handlers();
  if (prepared.start.guarded) {
    guard(prepared.parent);
  }
  put(prepared.start.input, STDIN_FILENO);
  put(prepared.start.output, STDOUT_FILENO);
  pthread_sigmask(SIG_SETMASK, &prepared.blocked, nullptr);
  execvp(prepared.arguments[0], prepared.arguments.data());
  const int error = errno;
  [[maybe_unused]] const auto written = ::write(prepared.report, &error, sizeof(error));
  _exit(127);
}

/// vfork in place of fork: a fork copies the page tables, runs the handlers that libraries have set
/// for it, and fails where memory must not be promised twice.
[[gnu::noinline]] pid_t start_prepared(const Prepared& prepared) {
  const pid_t child = vfork(); // NOLINT(clang-analyzer-security.insecureAPI.vfork)
  if (child == 0) {
    become(prepared);
  }
  return child;
}

} // namespace

StartedChild start_child(const ChildStart& start) {
  std::array<int, 2> report{};
  if (pipe2(report.data(), O_CLOEXEC) != 0) {
    return {-1, errno};
  }
  Prepared prepared{start, {}, {}, getpid(), report[1]};
  for (const std::string& word : start.words) {
    prepared.arguments.push_back(const_cast<char*>(word.c_str())); // exec does not write to it
  }
  prepared.arguments.push_back(nullptr);
  sigset_t all;
  sigset_t ours;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &ours);
  prepared.blocked = start.blocked == nullptr ? ours : *start.blocked;
  StartedChild started;
  started.pid = start_prepared(prepared);
  started.error = started.pid < 0 ? errno : 0;
  pthread_sigmask(SIG_SETMASK, &ours, nullptr);
  close(report[1]);
  // The pipe ends empty when exec succeeds.
  if (started.pid > 0 && read(report[0], &started.error, sizeof(started.error)) > 0) {
    waitpid(started.pid, nullptr, 0);
    started.pid = -1;
  }
  close(report[0]);
  return started;
}

int shell_status(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

ChildProcess::ChildProcess(const std::vector<std::string>& words, const std::string& advice) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw ConfigError(str("cannot run \"", words.at(0), "\": no socket: ", std::strerror(errno)));
  }
  const StartedChild started = start_child({.words = words, .input = ends[1], .output = ends[1]});
  close(ends[1]);
  if (started.error != 0) {
    close(ends[0]);
    throw ConfigError(
        str("cannot run \"", words.at(0), "\" (", std::strerror(started.error), ")", advice));
  }
  pid_ = started.pid;
  socket_ = ends[0];
}

ChildProcess::~ChildProcess() {
  close(socket_);
  if (pid_ > 0) {
    kill(pid_, SIGTERM);
    wait();
  }
}

bool ChildProcess::write(const void* bytes, std::size_t size) {
  const auto* at = static_cast<const char*>(bytes);
  while (size > 0) {
    // No signal: a child that died is an error message, not our end.
    const auto count = send(socket_, at, size, MSG_NOSIGNAL);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      return false;
    }
    at += count;
    size -= static_cast<std::size_t>(count);
  }
  return true;
}

bool ChildProcess::read(void* bytes, std::size_t size) {
  auto* at = static_cast<char*>(bytes);
  while (size > 0) {
    const auto count = recv(socket_, at, size, 0);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      return false;
    }
    at += count;
    size -= static_cast<std::size_t>(count);
  }
  return true;
}

std::string ChildProcess::read_to_end() {
  shutdown(socket_, SHUT_WR);
  std::string output;
  std::array<char, 65536> buffer;
  for (;;) {
    const auto count = recv(socket_, buffer.data(), buffer.size(), 0);
    if (count > 0) {
      output.append(buffer.data(), static_cast<std::size_t>(count));
    } else if (count == 0 || errno != EINTR) {
      return output;
    }
  }
}

int ChildProcess::wait() {
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return shell_status(status);
}

} // namespace tessera
