#include "tessera/transport/shm/mapping.h"

#include <new>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::transport::shm {

namespace {

/// Returns the size of what lies before the arena.
std::size_t arena_offset(int rings) {
  return kControlBytes + static_cast<std::size_t>(rings) * (kRingHeadBytes + kRingBytes);
}

} // namespace

Mapping::Mapping(ipc::Segment segment, int rings)
    : segment_(std::move(segment)),
      rings_(rings),
      arena_bytes_(segment_.size() - arena_offset(rings)) {}

MappingPtr Mapping::create(int rings, std::size_t arena_bytes) {
  auto mapping =
      MappingPtr(new Mapping(ipc::Segment::create(arena_offset(rings) + arena_bytes), rings));
  new (mapping->segment_.data()) Control{};
  for (int ring = 0; ring < rings; ++ring) {
    new (mapping->ring_head(ring)) RingHead{};
  }
  return mapping;
}

MappingPtr Mapping::open(const ipc::SegmentAddress& address, int rings) {
  if (address.bytes < arena_offset(rings)) {
    throw CommError(
        str("a segment of ", address.bytes, " bytes has no room for ", rings, " rings"));
  }
  return MappingPtr(new Mapping(ipc::Segment::open(address), rings));
}

RingHead* Mapping::ring_head(int ring) const {
  return reinterpret_cast<RingHead*>(segment_.data() + arena_offset(ring));
}

std::byte* Mapping::ring_data(int ring) const {
  return reinterpret_cast<std::byte*>(ring_head(ring)) + kRingHeadBytes;
}

std::byte* Mapping::arena() const {
  return reinterpret_cast<std::byte*>(ring_head(rings_));
}

void Mapping::release(std::uint64_t offset) const {
  auto* head = reinterpret_cast<BlockHead*>(arena() + offset - sizeof(BlockHead));
  auto& first = control().released;
  std::uint64_t next = first.load(std::memory_order_relaxed);
  do {
    head->next.store(next, std::memory_order_relaxed);
  } while (!first.compare_exchange_weak(
      next, offset, std::memory_order_release, std::memory_order_relaxed));
}

} // namespace tessera::transport::shm
