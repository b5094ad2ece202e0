#pragma once

#include <chrono>
#include <cstdint>

#include "tessera/ipc/counter.h"

namespace tessera::transport::shm {

/// Waits until a counter is raised. Spins for a few microseconds first when that is
/// allowed and has lately paid off, then sleeps in the kernel.
/// Threads: one thread at a time.
class Waiter {
 public:
  /// `may_spin` is false where ranks outnumber cores.
  explicit Waiter(bool may_spin) : may_spin_(may_spin) {}

  /// Returns when the counter differs from `seen` or after `timeout`; may return
  /// early. To miss nothing read the counter, look for work, then wait.
  void wait(ipc::Counter& counter, std::uint32_t seen, std::chrono::nanoseconds timeout);

 private:
  bool spin(const ipc::Counter& counter, std::uint32_t seen);
  const bool may_spin_;
  std::chrono::nanoseconds spin_{4000};
};

} // namespace tessera::transport::shm
