#pragma once

#include <chrono>
#include <functional>
#include <string>

namespace tessera::diagnostics {

/// A wait for other ranks, as a thread that waits in pieces sees it: what the board of this node
/// says long before the wait times out. Threads: one.
class Wait {
 public:
  /// How long a program that has ended may still have messages of its own on their way.
  static constexpr std::chrono::seconds kSettled{4};

  /// Returns whether `rank` is one of this node whose program has ended, and has been so for some
  /// seconds of this wait: what is waited for will not come. Once, after half a minute, it logs who
  /// waits for whom; `what` makes a text such as "barrier #2 of group 'world'".
  bool is_in_vain(int rank, const std::function<std::string()>& what);

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point began_ = Clock::now();
  bool told_ = false;
};

} // namespace tessera::diagnostics
