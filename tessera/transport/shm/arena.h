#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "tessera/transport/shm/mapping.h"

namespace tessera::transport::shm {

/// Manages a rank's persistent send buffer (paper, appendix G.2): only its owner allocates; the
/// receiver of a block releases it through Mapping::release, and the owner reclaims it at the next
/// allocation. Allocation is best fit, and free neighbours are merged. The bookkeeping is private
/// to the owner, so a receiver cannot damage it.
/// Threads: any thread of the owner.
class Arena {
 public:
  explicit Arena(MappingPtr own);

  /// Returns the offset in the arena of `bytes` bytes, a multiple of 64; nullopt when no free piece
  /// is large enough. Never waits.
  std::optional<std::uint64_t> allocate(std::size_t bytes);

 private:
  void reclaim();
  void add_free(std::uint64_t at, std::uint64_t bytes);
  void remove_free(std::map<std::uint64_t, std::uint64_t>::iterator piece);

  MappingPtr own_;
  std::mutex mutex_;
  std::map<std::uint64_t, std::uint64_t> free_by_place_; // start -> bytes
  std::set<std::pair<std::uint64_t, std::uint64_t>> free_by_size_;
  std::unordered_map<std::uint64_t, std::uint64_t> used_; // offset -> bytes
  std::uint64_t in_use_ = 0; // heads and rounding included
};

} // namespace tessera::transport::shm
