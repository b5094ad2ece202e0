#pragma once

namespace tessera::diagnostics {

/// Tells whether a process of this node still runs. Holds a descriptor of the
/// process where the kernel gives one, so a number used again does not mislead
/// and a process that nobody has waited for counts as ended.
/// Threads: `ended` from any thread, and from a signal handler.
class ProcessWatch {
 public:
  explicit ProcessWatch(int pid);
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;
  ~ProcessWatch();

  bool ended() const noexcept;
  int pid() const noexcept {
    return pid_;
  }

 private:
  int pid_;
  int fd_;
};

} // namespace tessera::diagnostics
