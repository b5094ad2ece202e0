#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

namespace tessera::comm {

/// The pauses of a loop that must poll: they grow with the time already waited
/// (an eighth of it, 20 us to 1 ms), so a poll adds little to a wait of any
/// length and takes little of a core that another rank needs.
/// Threads: one thread.
class Backoff {
 public:
  void pause() {
    using std::chrono::microseconds;
    const auto waited =
        std::chrono::duration_cast<microseconds>(std::chrono::steady_clock::now() - start_);
    if (waited < microseconds(20)) {
      std::this_thread::yield();
      return;
    }
    std::this_thread::sleep_for(std::clamp(waited / 8, microseconds(20), microseconds(1000)));
  }
  /// Something happened; the wait starts afresh.
  void restart() {
    start_ = std::chrono::steady_clock::now();
  }
  std::chrono::steady_clock::duration waited() const {
    return std::chrono::steady_clock::now() - start_;
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

} // namespace tessera::comm
