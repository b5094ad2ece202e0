#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "tessera/comm/shared_memory/segment.h"
#include "tessera/transport/shm/layout.h"

namespace tessera::transport::shm {

/// A rank's segment as this process sees it: control page, outgoing rings,
/// arena. Held by the transport and by every tensor that points into it.
/// Threads: any thread.
class Mapping {
 public:
  /// This rank's own. `rings`: ranks of this node, itself included.
  /// Pages are given when first written.
  static std::shared_ptr<Mapping> create(int rings, std::size_t arena_bytes, std::uint64_t nonce);
  /// Another process's.
  /// Throws: CommError when it cannot be opened or is not the one meant.
  static std::shared_ptr<Mapping>
  open(int pid, int fd, int rings, std::size_t arena_bytes, std::uint64_t nonce);

  Control& control() const {
    return *reinterpret_cast<Control*>(segment_.data());
  }
  RingHead* ring_head(int ring) const;
  std::byte* ring_data(int ring) const;
  std::byte* arena() const;
  std::size_t arena_bytes() const {
    return arena_bytes_;
  }
  int fd() const {
    return segment_.fd();
  }

  /// Gives a block of the arena back to its owner; lock-free.
  void release(std::uint64_t offset) const;

 private:
  Mapping(comm::shm::Segment segment, int rings, std::size_t arena_bytes);
  static std::size_t total_bytes(int rings, std::size_t arena_bytes);

  comm::shm::Segment segment_;
  int rings_;
  std::size_t arena_bytes_;
};
using MappingPtr = std::shared_ptr<Mapping>;

} // namespace tessera::transport::shm
