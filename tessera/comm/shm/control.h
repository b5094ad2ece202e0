#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tessera/comm/collective.h"

namespace tessera::comm::shm {

// What lies in the segment of a group. Every rank owns one RankBlock and
// kDepth slots for data; others only read them. A collective is a number of
// rounds; round k of a group (counted over its whole life, modulo 2^32) uses
// slot k % kDepth of every rank.

inline constexpr std::uint32_t kDepth = 4;
inline constexpr std::size_t kSlotBytes = std::size_t{256} << 10;
inline constexpr std::size_t kLine = 64;

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
  std::int64_t count;
};

struct RankBlock {
  /// Operations this rank has begun: who has arrived, for error messages.
  alignas(kLine) std::atomic<std::uint32_t> entered{0};
  Counter filled; // my slot of the round holds my data
  Counter reduced; // my slice of the round's result is in my slot
  Counter drained; // I will not read anybody's slot of the round again
  std::array<Notice, kDepth> notices;
};

struct Header {
  /// Drawn by the maker: shows that the right memory was mapped.
  std::atomic<std::uint64_t> nonce{0};
  /// 0, or 1 + the rank in the group that failed first; `reason` is valid once
  /// `failed` is set.
  alignas(kLine) std::atomic<std::uint32_t> failing{0};
  std::atomic<std::uint32_t> failed{0};
  std::array<char, 1024> reason;
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

} // namespace tessera::comm::shm
