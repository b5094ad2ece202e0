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
  /// This rank's own. `rings`: ranks of this node, itself included.
  /// Pages are given when first written.
  static std::shared_ptr<Mapping> create(int rings, std::size_t arena_bytes);
  /// Another process's.
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
  /// What another process opens; of this rank's own mapping.
  ipc::SegmentAddress address() const {
    return segment_.address();
  }

  /// Gives a block of the arena back to its owner; lock-free.
  void release(std::uint64_t offset) const;

 private:
  Mapping(ipc::Segment segment, int rings);

  ipc::Segment segment_;
  int rings_;
  std::size_t arena_bytes_;
};
using MappingPtr = std::shared_ptr<Mapping>;

} // namespace tessera::transport::shm
