#pragma once

#include <algorithm>
#include <chrono>

namespace tessera {

/// The time at which a blocking wait times out.
/// Threads: one thread at a time.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Deadline(std::chrono::milliseconds timeout)
      : timeout_(timeout), end_(Clock::now() + timeout) {}

  bool passed() const {
    return Clock::now() >= end_;
  }
  /// Returns the time that is left, at least zero.
  std::chrono::nanoseconds left() const {
    return std::max<std::chrono::nanoseconds>(end_ - Clock::now(), std::chrono::nanoseconds(0));
  }
  /// The whole time, for error messages.
  std::chrono::milliseconds timeout() const {
    return timeout_;
  }
  /// Gives the wait its whole time again, because there was progress.
  void restart() {
    end_ = Clock::now() + timeout_;
  }

 private:
  std::chrono::milliseconds timeout_;
  Clock::time_point end_;
};

} // namespace tessera
