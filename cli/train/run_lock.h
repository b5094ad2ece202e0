#pragma once

#include <string>

namespace tessera::cli {

/// Keeps what a run writes (a folder, a log) for one process: a small file that
/// names host, process and start, locked with flock(2) as long as the process
/// lives. The kernel lets go of the lock of a process that dies in any way, so
/// a file that is left behind is recognised as stale on its own host; of
/// another host nothing is known, and its lock counts until the file is
/// removed. Where the file system knows no locks, the process of that number
/// and start time is looked for instead.
/// Not collective. Threads: one at a time.
class RunLock {
 public:
  /// `path` is the lock's own file, `what` it protects, for messages.
  /// Throws: ConfigError that names host, process and start of the holder and
  /// says what to do; also when the file cannot be written.
  RunLock(std::string path, const std::string& what);
  /// Removes the file.
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  /// Whose stale lock was taken over, "" when there was none.
  const std::string& taken_from() const {
    return taken_from_;
  }

 private:
  bool try_to_open();

  std::string path_;
  std::string what_;
  std::string taken_from_;
  int fd_ = -1;
};

} // namespace tessera::cli
