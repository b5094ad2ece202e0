#include "tessera/comm/backends/shm/rounds.h"

#include <algorithm>

#include "tessera/comm/backends/shm/layout.h"

namespace tessera::comm::shm {

bool Rounds::is_flat() const {
  return operation_.kind == Collective::kAllReduce &&
         operation_.bytes(operation_.count * size_) <= kSlotBytes;
}

bool Rounds::has_reduce_stage() const {
  return operation_.kind == Collective::kReduce ||
         (operation_.kind == Collective::kAllReduce && !is_flat());
}

std::int64_t Rounds::slot_capacity() const {
  return static_cast<std::int64_t>(kSlotBytes / size_of(operation_.type));
}

std::int64_t Rounds::slice_capacity() const {
  const std::size_t slice =
      kSlotBytes / static_cast<std::size_t>(size_) / ipc::kCacheLine * ipc::kCacheLine;
  return static_cast<std::int64_t>(slice / size_of(operation_.type));
}

std::uint32_t Rounds::count() const {
  std::int64_t per_round = slot_capacity();
  if (has_reduce_stage()) {
    per_round = slice_capacity() * size_;
  } else if (
      operation_.kind == Collective::kReduceScatter || operation_.kind == Collective::kAllToAll) {
    per_round = slice_capacity();
  }
  return static_cast<std::uint32_t>(
      std::max<std::int64_t>(1, (operation_.count + per_round - 1) / per_round));
}

Span Rounds::slice(std::uint32_t index, int owner) const {
  const std::int64_t capacity = slice_capacity();
  if (!has_reduce_stage()) { // the caller cut the tensor into slices
    const std::int64_t offset = index * capacity;
    return {
        owner * operation_.count + offset,
        std::clamp<std::int64_t>(operation_.count - offset, 0, capacity)};
  }
  const std::int64_t start = index * capacity * size_;
  const std::int64_t rest = std::min(capacity * size_, operation_.count - start);
  const auto line = static_cast<std::int64_t>(ipc::kCacheLine / size_of(operation_.type));
  const std::int64_t even = (rest + size_ - 1) / size_;
  const std::int64_t length = (even + line - 1) / line * line;
  const std::int64_t begin = std::min(owner * length, rest);
  return {start + begin, std::min(begin + length, rest) - begin};
}

Span Rounds::whole(std::uint32_t index) const {
  const std::int64_t offset = static_cast<std::int64_t>(index) * slot_capacity();
  return {offset, std::min(slot_capacity(), operation_.count - offset)};
}

} // namespace tessera::comm::shm
