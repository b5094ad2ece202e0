#include "tessera/transport/shm/mapping.h"

#include <new>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::transport::shm {

std::size_t Mapping::total_bytes(int rings, std::size_t arena_bytes) {
  return kControlBytes + static_cast<std::size_t>(rings) * (kRingHeadBytes + kRingBytes) +
         arena_bytes;
}

Mapping::Mapping(comm::shm::Segment segment, int rings, std::size_t arena_bytes)
    : segment_(std::move(segment)), rings_(rings), arena_bytes_(arena_bytes) {}

MappingPtr Mapping::create(int rings, std::size_t arena_bytes, std::uint64_t nonce) {
  auto mapping = MappingPtr(
      new Mapping(comm::shm::Segment::create(total_bytes(rings, arena_bytes)), rings, arena_bytes));
  auto* control = new (mapping->segment_.data()) Control{};
  control->nonce = nonce;
  for (int ring = 0; ring < rings; ++ring) {
    new (mapping->ring_head(ring)) RingHead{};
  }
  return mapping;
}

MappingPtr Mapping::open(int pid, int fd, int rings, std::size_t arena_bytes, std::uint64_t nonce) {
  auto mapping = MappingPtr(new Mapping(
      comm::shm::Segment::open(pid, fd, total_bytes(rings, arena_bytes)), rings, arena_bytes));
  if (mapping->control().nonce != nonce) {
    throw CommError(
        str("process ",
            pid,
            " is another one here than where the peer runs: two nodes or "
            "containers of one host name? Give each its own host name."));
  }
  return mapping;
}

RingHead* Mapping::ring_head(int ring) const {
  return reinterpret_cast<RingHead*>(
      segment_.data() + kControlBytes +
      static_cast<std::size_t>(ring) * (kRingHeadBytes + kRingBytes));
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
