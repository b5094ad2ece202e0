#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "tessera/comm/collective.h"
#include "tessera/comm/shared_memory/group_state.h"
#include "tessera/ipc/segment.h"

namespace tessera::comm {

class ProcessGroup;

/// A region of memory for each rank of a group, mapped by all of them, and a
/// few counters of each rank that the others wait for. What a rank wrote into
/// its region before `post` is seen by whoever has waited for that value.
///
/// It serves exchanges in which a receiver reads its peer's data once, for instance as the operand
/// of a product: nothing is copied but what the owner writes.
/// Threads: one thread of a rank at a time.
class Window {
 public:
  static constexpr int kCounters = 3;

  /// Collective over `group`, whose ranks share memory.
  /// Throws: CommError on all ranks when one cannot map it.
  static std::shared_ptr<Window> make(ProcessGroup& group, std::size_t bytes_of_rank);

  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  int rank() const {
    return info_.rank;
  }
  /// Begins on a page, right behind the region of the rank before.
  std::byte* region(int rank) const;
  std::size_t region_bytes() const {
    return bytes_of_rank_;
  }

  /// Sets a counter of this rank; values grow, modulo 2^32.
  void post(int counter, std::uint32_t value);
  /// Sleeps until the counter of `rank` has reached `target`.
  /// Throws: CommError naming the rank and `what` after the group's timeout, or when a rank of the
  /// group has failed for good; PeerFailed.
  void wait(int rank, int counter, std::uint32_t target, const char* what);

  /// Makes the waits of all ranks throw with `reason`.
  void fail(const std::string& reason);

  /// Works as ProcessGroup::abandon: a rank that waits here for a value that this rank has not
  /// posted, and has not failed as often itself, gets PeerFailed; so does every rank from then on.
  void abandon(const std::string& why);
  /// Returns how often this rank has abandoned the window since the last `recover`.
  std::uint32_t failures() const {
    return failures_;
  }
  /// Throws PeerFailed: `rank` has failed more often than this one, or less
  /// often (then this rank is the origin), and yet goes on.
  [[noreturn]] void differs(int rank, std::uint32_t its_failures);
  /// Clears this rank's failures. All ranks call it once none waits here any more, and wait for
  /// each other before one uses the window again.
  void recover();

 private:
  Window(GroupInfo info, ipc::Segment segment, std::size_t bytes_of_rank);
  struct Counters;
  Counters& counters(int rank) const;
  void check(int rank, ipc::Counter& theirs, std::uint32_t target, const char* what);
  [[noreturn]] void leave(int origin) const;

  GroupInfo info_;
  ipc::Segment segment_;
  std::size_t bytes_of_rank_;
  GroupState* state_;
  std::uint32_t failures_ = 0;
};

} // namespace tessera::comm
