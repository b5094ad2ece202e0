#include "models/data/child_process.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <spawn.h>

#include "tessera/base/error.h"

extern char** environ;

namespace tessera::data {

ChildProcess::ChildProcess(const std::vector<std::string>& words, const std::string& advice)
    : name_(words.at(0)) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw ConfigError(str("cannot run \"", name_, "\": no socket: ", std::strerror(errno)));
  }
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], 0);
  posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
  std::vector<char*> arguments;
  for (const auto& word : words) {
    arguments.push_back(const_cast<char*>(word.c_str()));
  }
  arguments.push_back(nullptr);
  const int failed =
      posix_spawnp(&pid_, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  if (failed != 0) {
    close(ends[0]);
    throw ConfigError(str("cannot run \"", name_, "\" (", std::strerror(failed), ")", advice));
  }
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
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

} // namespace tessera::data
