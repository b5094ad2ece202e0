#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

#include "tessera/base/deadline.h"

namespace tessera::comm {

/// The pauses of a loop that must poll: they grow with the time already waited
/// (an eighth of it, 20 us to 1 ms), so a poll adds little to a wait of any
/// length and takes little of a core that another rank needs.
/// Threads: one thread.
class Backoff {
 public:
  explicit Backoff(std::chrono::milliseconds timeout) : deadline_(timeout) {}

  void pause() {
    using std::chrono::microseconds;
    const auto waited = std::chrono::duration_cast<microseconds>(Deadline::Clock::now() - start_);
    if (waited < microseconds(20)) {
      std::this_thread::yield();
      return;
    }
    std::this_thread::sleep_for(std::clamp(waited / 8, microseconds(20), microseconds(1000)));
  }
  /// Restarts the pauses and the timeout because something has happened.
  void restart() {
    start_ = Deadline::Clock::now();
    deadline_.restart();
  }
  /// Returns whether nothing has happened for the whole timeout.
  bool expired() const {
    return deadline_.passed();
  }

 private:
  Deadline::Clock::time_point start_ = Deadline::Clock::now();
  Deadline deadline_;
};

} // namespace tessera::comm
