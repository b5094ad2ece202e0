#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "tessera/comm/collective.h"

namespace tessera::comm::shm {

// What lies in the segment of a group. Every rank owns one RankBlock and
// kDepth slots for data; others only read them. A collective is a number of
// rounds; round k of a group (counted over its whole life, modulo 2^32) uses
// slot k % kDepth of every rank.

inline constexpr std::uint32_t kDepth = 4;
inline constexpr std::size_t kSlotBytes = std::size_t{256} << 10;
inline constexpr std::size_t kLine = 64;

/// Sleeps are cut into pieces so that a peer's failure is seen.
inline constexpr std::chrono::milliseconds kSleepPiece{50};

/// Whether a counter (modulo 2^32) has come to `target`.
inline bool reached(std::uint32_t value, std::uint32_t target) {
  return static_cast<std::int32_t>(value - target) >= 0;
}

/// Number of rounds a rank has finished some stage of; others sleep on it.
struct alignas(kLine) Counter {
  std::atomic<std::uint32_t> value{0};
  std::atomic<std::uint32_t> sleepers{0};
};

/// What a rank is doing in a round; peers compare it with their own. Written
/// before `filled` says so and read after it.
struct alignas(kLine) Notice {
  std::uint32_t sequence; // of the operation in the group
  std::int32_t kind;
  std::int32_t type;
  std::int32_t reduce;
  std::int32_t root;
  std::uint32_t failures; // of this rank, before it started the operation
  std::int64_t count;
  double scale;
};

/// What a rank tells of failures of its own code, which make it leave the
/// group's operations (comm/recoverable.h).
struct alignas(kLine) Failures {
  static constexpr std::uint32_t kKept = 16;
  std::atomic<std::uint32_t> count{0}; // since the group was whole
  /// How many operations the rank had started at each of the last kKept.
  std::array<std::atomic<std::uint32_t>, kKept> started;
  std::array<char, 512> why; // the first; valid once count is not 0

  /// One thread at a time.
  void tell(std::uint32_t operations, const std::string& text) {
    const std::uint32_t number = count.load();
    if (number == 0) {
      const std::size_t length = std::min(text.size(), why.size() - 1);
      std::memcpy(why.data(), text.data(), length);
      why[length] = '\0';
    }
    started[number % kKept].store(operations);
    count.store(number + 1);
  }
  /// Whether an operation that a rank with `failures` of its own has started
  /// as its `sequence`th will never see this rank: it failed once more before.
  bool misses(std::uint32_t sequence, std::uint32_t failures) const {
    const std::uint32_t number = count.load(std::memory_order_acquire);
    return number > failures &&
           (number - failures > kKept || !reached(started[failures % kKept].load(), sequence));
  }
};

struct RankBlock {
  /// Operations this rank has begun: who has arrived, for error messages.
  alignas(kLine) std::atomic<std::uint32_t> entered{0};
  Counter filled; // my slot of the round holds my data
  Counter reduced; // my slice of the round's result is in my slot
  Counter drained; // I will not read anybody's slot of the round again
  std::array<Notice, kDepth> notices;
  Failures failures;
  Counter met; // how often I came to a meeting of `recover`
  std::uint32_t rounds; // I had come so far; valid once `met` says so
  std::uint32_t sequence;
};

struct Header {
  /// Drawn by the maker: shows that the right memory was mapped.
  std::atomic<std::uint64_t> nonce{0};
  /// 0, or 1 + the rank in the group that failed first; `reason` is valid once
  /// `failed` is set.
  alignas(kLine) std::atomic<std::uint32_t> failing{0};
  std::atomic<std::uint32_t> failed{0};
  std::array<char, 1024> reason;
  /// 0, or 1 + the rank that left an operation in which others are: until all
  /// ranks have recovered, every operation ends with that rank's `why`.
  std::atomic<std::uint32_t> broken{0};
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

} // namespace tessera::comm::shm
