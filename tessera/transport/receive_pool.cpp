#include "tessera/transport/receive_pool.h"

#include <new>
#include <utility>

#include <ATen/ATen.h>

namespace tessera::transport {

namespace {

// Below this size the system's allocator keeps memory itself.
constexpr std::size_t kPooled = std::size_t{128} << 10;
constexpr std::size_t kStep = std::size_t{4} << 10;
constexpr std::align_val_t kAlign{64};

} // namespace

void ReceivePool::Free::operator()(std::byte* at) const {
  ::operator delete(at, kAlign);
}

ReceivePool::Piece ReceivePool::take(std::size_t& bytes) {
  bytes = (bytes + kStep - 1) / kStep * kStep;
  {
    const std::scoped_lock lock(mutex_);
    const auto found = pieces_.lower_bound(bytes);
    // A much larger piece is better left for a tensor that needs it.
    if (found != pieces_.end() && found->first <= bytes + bytes / 4) {
      bytes = found->first;
      kept_ -= bytes;
      Piece piece = std::move(found->second);
      pieces_.erase(found);
      return piece;
    }
  }
  return Piece(static_cast<std::byte*>(::operator new(bytes, kAlign)));
}

void ReceivePool::give_back(std::size_t bytes, std::byte* at) {
  Piece piece(at);
  const std::scoped_lock lock(mutex_);
  if (kept_ + bytes <= most_) {
    pieces_.emplace(bytes, std::move(piece));
    kept_ += bytes;
  }
}

at::Tensor
ReceivePool::make(const std::vector<std::int64_t>& shape, at::ScalarType dtype, std::size_t bytes) {
  if (bytes < kPooled) {
    return at::empty(shape, at::dtype(dtype));
  }
  std::size_t size = bytes;
  std::byte* at = take(size).release();
  return at::from_blob(
      at,
      shape,
      [pool = shared_from_this(), size](void* data) {
        pool->give_back(size, static_cast<std::byte*>(data));
      },
      at::dtype(dtype));
}

std::size_t ReceivePool::kept() const {
  const std::scoped_lock lock(mutex_);
  return kept_;
}

} // namespace tessera::transport
