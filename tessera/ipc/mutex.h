#pragma once

#include <pthread.h>

namespace tessera::ipc {

/// A lock in memory that several processes map. It is `make`d once, before others use it, in memory
/// that is filled with zeros; it is never destroyed, as the memory goes with its last mapping.
/// Threads: any thread of any process that maps it. std::lock_guard takes it.
class Mutex {
 public:
  /// Throws: CommError with the system's reason.
  void make();
  /// Throws: CommError when a process has ended while it held the lock, and every time from then
  /// on: what the lock guards may be half written.
  void lock();
  void unlock();

 private:
  pthread_mutex_t mutex_;
};

} // namespace tessera::ipc
