#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tessera/comm/shared_memory/group_state.h"
#include "tessera/ipc/counter.h"

namespace tessera::comm::shm {

// What lies in the segment of a group: a GroupState, one RankBlock for each rank, and kDepth slots
// for the data of each rank. A rank writes its own block and slots; the others only read them. A
// collective is a number of rounds; round k of a group (counted over its whole life, modulo 2^32)
// uses slot k % kDepth of every rank.

inline constexpr std::uint32_t kDepth = 4;
inline constexpr std::size_t kSlotBytes = std::size_t{256} << 10;

/// What a rank is doing in a round; peers compare it with their own. It is written before `filled`
/// is raised and read after.
struct alignas(ipc::kCacheLine) Notice {
  std::uint32_t sequence; // of the operation in the group
  std::uint32_t failures; // of this rank, before it started the operation
  Operation operation; // its memory is in the rank's own process
};

struct RankBlock {
  /// The number of operations this rank has begun; error messages say from it who has arrived.
  alignas(ipc::kCacheLine) std::atomic<std::uint32_t> entered{0};
  // The number of rounds of which this rank has finished a stage.
  ipc::Counter filled; // my slot of the round holds my data
  ipc::Counter reduced; // my slice of the round's result is in my slot
  ipc::Counter drained; // I will not read anybody's slot of the round again
  std::array<Notice, kDepth> notices;
  RankFailures failures;
  ipc::Counter met; // how often I came to a meeting of `recover`
  std::uint32_t rounds; // I had come so far; valid once `met` says so
  std::uint32_t sequence;
};

} // namespace tessera::comm::shm
