#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "tessera/comm/collective.h"
#include "tessera/ipc/counter.h"

// The state in memory that all ranks of a group map, which says whether the group still works. The
// shared-memory engine and windows have one each.
namespace tessera::comm {

/// What a rank publishes about failures of its own code, which make it leave the group's operations
/// (ProcessGroup::abandon).
struct alignas(ipc::kCacheLine) RankFailures {
  static constexpr std::uint32_t kKept = 16;
  std::atomic<std::uint32_t> count{0}; // since the group was whole
  /// The number of operations that the rank had started at each of its last kKept failures.
  std::array<std::atomic<std::uint32_t>, kKept> started;
  std::array<char, 512> why; // the first; valid once count is not 0

  /// One thread at a time.
  void add(std::uint32_t operations, std::string_view text);
  /// Returns whether an operation, which a rank with `failures` of its own has started as its
  /// `sequence`th, will never see this rank, because this rank failed once more before it.
  bool misses(std::uint32_t sequence, std::uint32_t failures) const;
};

/// Says whether the group has failed for good or is broken, and by whom.
struct GroupState {
  /// 0, or 1 + the rank in the group that failed first; `reason` is valid once
  /// `failed` is set.
  alignas(ipc::kCacheLine) std::atomic<std::uint32_t> failing{0};
  std::atomic<std::uint32_t> failed{0};
  std::array<char, 1024> reason;
  /// 0, or 1 + the rank that left an operation in which others are. Until all ranks have recovered,
  /// every operation ends with that rank's `why`.
  std::atomic<std::uint32_t> broken{0};

  /// Makes the waits of all ranks throw from now on; the first rank to fail sets the reason.
  void fail(int rank, std::string_view text);
  /// Throws: CommError when a rank has failed for good, beginning with `what()`.
  template <typename What>
  void throw_if_failed(const GroupInfo& info, const What& what) const {
    if (const std::uint32_t rank = failed.load(std::memory_order_acquire); rank != 0) {
      throw_failed(info, static_cast<int>(rank) - 1, what());
    }
  }
  bool is_broken() const {
    return broken.load(std::memory_order_acquire) != 0;
  }
  /// Breaks the group by a failure of rank `origin`, unless it is broken already. Returns the rank
  /// that broke it.
  int break_by(int origin);

 private:
  [[noreturn]] void throw_failed(const GroupInfo& info, int rank, const std::string& what) const;
};

} // namespace tessera::comm
