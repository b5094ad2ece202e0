#pragma once

#include <csignal>
#include <cstddef>
#include <string>
#include <vector>

#include <sys/types.h>

namespace tessera {

/// How a program is started as a child of this process, without a shell.
struct ChildStart {
  /// The program and its arguments; the first is looked up in PATH unless it has a slash.
  std::vector<std::string> words;
  /// Descriptors that become the child's standard input and output; -1: it has ours.
  int input = -1;
  int output = -1;
  /// The child has a process group of its own, so that Ctrl-C at the terminal does not reach it,
  /// and no terminal as its input; it gets SIGTERM when the thread that started it ends.
  bool guarded = false;
  /// The signals that the child blocks; nullptr: those that the calling thread blocks.
  const sigset_t* blocked = nullptr;
};

/// What came of a start.
struct StartedChild {
  pid_t pid = -1; // -1: there is no child
  int error = 0; // errno of what failed; 0: the program runs
};

/// Starts a program. The memory of this process is neither copied nor marked for copying, so that a
/// start costs the same in a process of many gigabytes.
/// Threads: any number.
StartedChild start_child(const ChildStart& start);

/// Returns an exit status as a shell says it: 128 + signal of a child that a signal ended. `status`
/// is what waitpid wrote.
int shell_status(int status);

/// A child whose standard input and output are joined to this object by a socket; its errors go
/// where ours go. It ends at the latest with this object (end of its input, then SIGTERM).
/// Threads: one at a time.
class ChildProcess {
 public:
  /// Throws: ConfigError "cannot run ..." followed by `advice`.
  ChildProcess(const std::vector<std::string>& words, const std::string& advice);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  /// False when the child has closed its end.
  bool write(const void* bytes, std::size_t size);
  bool read(void* bytes, std::size_t size);

  /// Ends the child's input, returns everything it prints from here on.
  std::string read_to_end();

  /// Waits for the child's end; the status as a shell says it.
  int wait();

 private:
  pid_t pid_ = -1;
  int socket_ = -1;
};

} // namespace tessera
