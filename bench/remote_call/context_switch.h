#pragma once

#include <memory>

namespace tessera::bench {

/// A second process that answers through a futex in shared memory, for the time
/// that two processes need to wake each other: one round is two context
/// switches. Make it before MPI starts: it forks.
class ContextSwitch {
 public:
  ContextSwitch();
  ~ContextSwitch();
  ContextSwitch(const ContextSwitch&) = delete;
  ContextSwitch& operator=(const ContextSwitch&) = delete;

  /// Wakes the other process and sleeps until it answers.
  void round();

 private:
  struct Shared;
  Shared* shared_ = nullptr;
  int child_ = -1;
};

} // namespace tessera::bench
