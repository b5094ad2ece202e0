#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "tessera/ipc/segment.h"
#include "tessera/transport/shm/layout.h"

namespace tessera::transport::shm {

/// A rank's segment as this process sees it: control page, outgoing rings,
/// arena. Held by the transport and by every tensor that points into it.
/// Threads: any thread.
class Mapping {
 public:
  /// Makes this rank's own segment. `rings` is the number of ranks of this node, this one included.
  /// The system gives pages when they are first written.
  static std::shared_ptr<Mapping> create(int rings, std::size_t arena_bytes);
  /// Opens another process's segment.
  /// Throws: CommError when it cannot be opened or is not the one meant.
  static std::shared_ptr<Mapping> open(const ipc::SegmentAddress& address, int rings);

  Control& control() const {
    return *reinterpret_cast<Control*>(segment_.data());
  }
  RingHead* ring_head(int ring) const;
  std::byte* ring_data(int ring) const;
  std::byte* arena() const;
  std::size_t arena_bytes() const {
    return arena_bytes_;
  }
  /// Returns what another process opens; only this rank's own mapping has it.
  ipc::SegmentAddress address() const {
    return segment_.address();
  }

  /// Releases a block of the arena to its owner, without a lock.
  void release(std::uint64_t offset) const;

 private:
  Mapping(ipc::Segment segment, int rings);

  ipc::Segment segment_;
  int rings_;
  std::size_t arena_bytes_;
};
using MappingPtr = std::shared_ptr<Mapping>;

} // namespace tessera::transport::shm
