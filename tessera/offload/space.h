#pragma once

#include <cstdint>
#include <map>

#include "tessera/offload/host.h"

namespace tessera::offload {

/// Divides a file into pieces. Free neighbours become one piece, and the first free piece that is
/// large enough is taken, so steps that keep the same tensors use the same space.
/// Threads: one at a time.
class Space {
 public:
  /// Pieces begin at multiples of it, and are as long.
  static constexpr std::int64_t kAlignment = 4096;

  /// Returns a piece of at least `bytes`; `size` may have grown for it.
  Place take(std::int64_t bytes);
  void give_back(Place place);

  /// Returns the end of the last piece there ever was.
  std::int64_t size() const {
    return size_;
  }
  /// Returns what is in no piece.
  std::int64_t free() const;

 private:
  std::map<std::int64_t, std::int64_t> free_; // length by offset; no two of them touch
  std::int64_t size_ = 0;
};

} // namespace tessera::offload
