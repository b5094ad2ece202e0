#pragma once

#include <chrono>
#include <cstdint>

#include "tessera/transport/shm/layout.h"

namespace tessera::transport::shm {

/// Raises the count and wakes the sleeper if there is one.
/// Threads: any thread of any process that maps the event.
void notify(Event& event);

/// Waits for an Event. Spins for a few microseconds first when that is
/// allowed and has lately paid off, then sleeps in the kernel.
/// Threads: one thread at a time.
class Waiter {
 public:
  /// `may_spin`: false where ranks outnumber cores.
  explicit Waiter(bool may_spin) : may_spin_(may_spin) {}

  /// Returns when the count differs from `seen` or after `timeout`; may return
  /// early. To miss nothing read the count, look for work, then wait.
  void wait(Event& event, std::uint32_t seen, std::chrono::nanoseconds timeout);

 private:
  bool spin(const Event& event, std::uint32_t seen);
  const bool may_spin_;
  std::chrono::nanoseconds spin_{4000};
};

} // namespace tessera::transport::shm
