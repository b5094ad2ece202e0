#include "tessera/transport/shm/arena.h"

#include <iterator>
#include <new>

#include "tessera/base/error.h"

namespace tessera::transport::shm {

Arena::Arena(MappingPtr own) : own_(std::move(own)) {
  const std::uint64_t bytes = own_->arena_bytes() / kLine * kLine;
  if (bytes != 0) {
    add_free(0, bytes);
  }
}

std::optional<std::uint64_t> Arena::allocate(std::size_t bytes) {
  const std::uint64_t need = (bytes + kLine - 1) / kLine * kLine + sizeof(BlockHead);
  const std::scoped_lock lock(mutex_);
  reclaim();
  const auto fit = free_by_size_.lower_bound({need, 0});
  if (fit == free_by_size_.end()) {
    return std::nullopt;
  }
  const std::uint64_t have = fit->first;
  const std::uint64_t start = fit->second;
  remove_free(free_by_place_.find(start));
  if (have > need) {
    add_free(start + need, have - need);
  }
  new (own_->arena() + start) BlockHead{};
  const std::uint64_t offset = start + sizeof(BlockHead);
  used_.emplace(offset, need);
  in_use_ += need;
  own_->control().arena_in_use.store(in_use_, std::memory_order_relaxed);
  return offset;
}

void Arena::reclaim() {
  auto& released = own_->control().released;
  if (released.load(std::memory_order_relaxed) == 0) {
    return;
  }
  // The whole stack is taken at once, so that a block cannot be pushed again while it is walked.
  std::uint64_t offset = released.exchange(0, std::memory_order_acquire);
  while (offset != 0) {
    const auto block = used_.find(offset);
    if (block == used_.end()) {
      throw CommError(
          str("a peer gave back ", offset, ", which is no block of this rank's send buffer"));
    }
    const std::uint64_t start = offset - sizeof(BlockHead);
    const std::uint64_t bytes = block->second;
    used_.erase(block);
    in_use_ -= bytes;
    offset =
        reinterpret_cast<BlockHead*>(own_->arena() + start)->next.load(std::memory_order_relaxed);
    add_free(start, bytes);
  }
  own_->control().arena_in_use.store(in_use_, std::memory_order_relaxed);
}

void Arena::add_free(std::uint64_t at, std::uint64_t bytes) {
  auto after = free_by_place_.lower_bound(at);
  if (after != free_by_place_.end() && at + bytes == after->first) {
    bytes += after->second;
    const auto merged = after++;
    remove_free(merged);
  }
  if (after != free_by_place_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == at) {
      at = before->first;
      bytes += before->second;
      remove_free(before);
    }
  }
  free_by_place_.emplace(at, bytes);
  free_by_size_.emplace(bytes, at);
}

void Arena::remove_free(std::map<std::uint64_t, std::uint64_t>::iterator piece) {
  free_by_size_.erase({piece->second, piece->first});
  free_by_place_.erase(piece);
}

} // namespace tessera::transport::shm
