#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "tessera/base/deadline.h"

namespace tessera::ipc {

inline constexpr std::size_t kCacheLine = 64;

/// Tells the core that the loop around this waits for memory.
void relax();

/// A number in memory that several processes map; one of them raises it, others sleep until it
/// has come to some value. Values grow, modulo 2^32. It lies in a cache line of its own.
/// Threads: any thread of any process that maps it.
struct alignas(kCacheLine) Counter {
  std::atomic<std::uint32_t> value{0};
  std::atomic<std::uint32_t> sleepers{0};

  bool has_reached(std::uint32_t target) const {
    return is_at_or_after(value.load(std::memory_order_acquire), target);
  }
  /// Compares two values modulo 2^32.
  static bool is_at_or_after(std::uint32_t a, std::uint32_t b) {
    return static_cast<std::int32_t>(a - b) >= 0;
  }

  /// Sets the value and wakes the sleepers.
  void post(std::uint32_t next) {
    value.store(next);
    wake_sleepers();
  }
  /// Adds one and wakes the sleepers.
  void raise() {
    value.fetch_add(1);
    wake_sleepers();
  }

  /// Sleeps until the value differs from `seen`, the sleepers are woken, or `timeout` passes; may
  /// return early.
  void sleep_while(std::uint32_t seen, std::chrono::nanoseconds timeout);

  /// Looks for a few microseconds: a peer that comes that soon costs no sleep. True once `target`
  /// is reached.
  bool spin_until(std::uint32_t target) const;

  /// Sleeps until `target` is reached and returns true, or false after `deadline`. Sleeps are cut
  /// into pieces; `check` runs after each and may throw.
  template <typename Check>
  bool wait_until(std::uint32_t target, const Deadline& deadline, const Check& check) {
    while (!has_reached(target)) {
      const std::uint32_t seen = value.load();
      if (!is_at_or_after(seen, target)) {
        sleep_while(seen, kSleepPiece);
      }
      if (has_reached(target)) {
        return true;
      }
      check();
      if (deadline.passed()) {
        return has_reached(target);
      }
    }
    return true;
  }

 private:
  /// Short, so that a peer's failure is seen soon.
  static constexpr std::chrono::milliseconds kSleepPiece{50};
  void wake_sleepers();
};

} // namespace tessera::ipc
