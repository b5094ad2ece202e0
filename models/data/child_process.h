#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include <sys/types.h>

namespace tessera::data {

/// A program started without a shell, its standard input and output joined to
/// this object by a socket; its errors go where ours go. It ends at the latest
/// with this object (end of its input, then SIGTERM).
/// Threads: one at a time.
class ChildProcess {
 public:
  /// words[0] is looked up in PATH unless it has a slash.
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

  /// Waits; the exit status, 128 + signal for a killed one.
  int wait();

 private:
  std::string name_;
  pid_t pid_ = -1;
  int socket_ = -1;
};

} // namespace tessera::data
