#include "tessera/nn/parallel/shard.h"

#include <algorithm>

#include "tessera/base/error.h"

namespace tessera::nn {

namespace {

at::Tensor box(
    at::Tensor tensor,
    const std::vector<std::int64_t>& start,
    const std::vector<std::int64_t>& sizes) {
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    tensor = tensor.narrow(static_cast<std::int64_t>(d), start[d], sizes[d]);
  }
  return tensor;
}

std::string sizes_text(at::IntArrayRef sizes) {
  std::string text = "[";
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    text += (d == 0 ? "" : ", ") + std::to_string(sizes[d]);
  }
  return text + "]";
}

void check_sizes(
    const char* what,
    at::IntArrayRef found,
    const std::vector<std::int64_t>& expected) {
  if (found != at::IntArrayRef(expected)) {
    throw ShapeError(tessera::str(
        "the ",
        what,
        " tensor of a distributed parameter has sizes ",
        sizes_text(found),
        "; its module expects ",
        sizes_text(expected)));
  }
}

} // namespace

Range even_range(std::int64_t length, int parts, int index) {
  const std::int64_t least = length / parts;
  const std::int64_t larger = length % parts;
  const std::int64_t start = index * least + std::min<std::int64_t>(index, larger);
  return {start, start + least + (index < larger ? 1 : 0)};
}

Shard whole(const std::vector<std::int64_t>& sizes) {
  const std::vector<std::int64_t> origin(sizes.size(), 0);
  return {sizes, sizes, {Piece{origin, origin, sizes}}};
}

Shard slice_of(const std::vector<std::int64_t>& full_sizes, std::int64_t dim, Range range) {
  Shard shard = whole(full_sizes);
  shard.local_sizes[dim] = range.size();
  shard.pieces.front().full_start[dim] = range.start;
  shard.pieces.front().sizes[dim] = range.size();
  return shard;
}

at::Tensor take_shard(const Shard& shard, const at::Tensor& full) {
  const at::NoGradGuard no_grad;
  check_sizes("full", full.sizes(), shard.full_sizes);
  // Not by the full one's device by name: the full one may be delayed.
  at::Tensor local = full.new_empty(shard.local_sizes);
  for (const Piece& piece : shard.pieces) {
    box(local, piece.local_start, piece.sizes).copy_(box(full, piece.full_start, piece.sizes));
  }
  return local;
}

void put_shard(const Shard& shard, const at::Tensor& local, at::Tensor& full) {
  const at::NoGradGuard no_grad;
  check_sizes("full", full.sizes(), shard.full_sizes);
  check_sizes("local", local.sizes(), shard.local_sizes);
  for (const Piece& piece : shard.pieces) {
    box(full, piece.full_start, piece.sizes).copy_(box(local, piece.local_start, piece.sizes));
  }
}

} // namespace tessera::nn
