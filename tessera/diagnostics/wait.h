#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace tessera::diagnostics {

/// A wait for other ranks, as a thread that waits in pieces sees it: what the board of this node
/// says long before the wait times out. Threads: one.
class Wait {
 public:
  /// How long a program that has ended may still have messages of its own on their way.
  static constexpr std::chrono::seconds kSettled{4};

  /// `lockstep`: the other rank has to come to the same call, as in an all-reduce over shared
  /// memory, and nothing of it is on its way. A message may be: its sender has gone on.
  explicit Wait(bool lockstep = false) : lockstep_(lockstep) {}
  ~Wait();
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;

  /// Returns why what is waited for will not come from `rank`, a rank of this node, as the end of a
  /// sentence; "" as long as it may come. Its program has ended some seconds ago, or both scripts
  /// have waited for each other for some seconds, in calls of different groups in lockstep. Once,
  /// after half a minute, it logs who waits for whom; `what` makes a text such as "barrier #2 of
  /// group 'world'".
  std::string in_vain(int rank, const std::function<std::string()>& what);

 private:
  using Clock = std::chrono::steady_clock;
  bool lockstep_;
  Clock::time_point began_ = Clock::now();
  bool told_ = false;
  bool shown_ = false; // that it waits, to other ranks
  std::uint64_t opposed_ = 0; // the number of an operation that may be in this one's way
  Clock::time_point opposed_since_;
};

} // namespace tessera::diagnostics
