#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "tessera/ipc/counter.h"

namespace tessera::transport::shm {

inline constexpr std::size_t kLine = ipc::kCacheLine;

/// Head of a rank's segment. Behind it lie one ring for each rank of the node
/// (what this rank sends there) and the arena.
struct Control {
  std::atomic<std::uint32_t> closed; // this rank has left in good order
  ipc::Counter inbox; // raised by who sends to this rank
  ipc::Counter thread; // raised to wake this rank's message thread
  // The stack of released arena blocks: the offset of the first, 0 when empty.
  alignas(kLine) std::atomic<std::uint64_t> released;
  alignas(kLine) std::atomic<std::uint64_t> arena_in_use; // bytes
};

struct RingHead {
  alignas(kLine) std::atomic<std::uint64_t> written; // bytes ever, by sender
  alignas(kLine) std::atomic<std::uint64_t> read; // bytes ever, by receiver
  alignas(kLine) std::atomic<std::uint32_t> writer_waits;
};

/// Stands before each block of the arena.
struct alignas(kLine) BlockHead {
  std::atomic<std::uint64_t> next; // in the stack of released blocks
};

inline constexpr std::size_t kControlBytes = 4096;
inline constexpr std::size_t kRingHeadBytes = 256;
inline constexpr std::size_t kRingBytes = std::size_t{128} << 10;
static_assert(sizeof(Control) <= kControlBytes);
static_assert(sizeof(RingHead) <= kRingHeadBytes);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

} // namespace tessera::transport::shm
