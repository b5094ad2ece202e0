#pragma once

namespace tessera::runtime {

/// A binary semaphore by which one thread of a rank lets another one compute, before it sleeps
/// itself. It is a pipe, since the kernel then expects the writer to sleep at once and wakes the
/// reader on the writer's processor. A futex wakes it on the processor where it last ran, which
/// may be another rank's, and both ranks share that one while this one idles (decision 199).
class Handover {
 public:
  /// Throws: Error when the process may open no more files.
  Handover();
  ~Handover();
  Handover(const Handover&) = delete;
  Handover& operator=(const Handover&) = delete;

  /// Lets the thread that waits in `acquire`, or the next one that calls it, go on.
  void release() noexcept;
  void acquire() noexcept;

 private:
  int ends_[2] = {-1, -1};
};

} // namespace tessera::runtime
