#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::nn {

/// A box of the full tensor and where it lies in the local one.
struct Piece {
  std::vector<std::int64_t> full_start;
  std::vector<std::int64_t> local_start;
  std::vector<std::int64_t> sizes;
};

/// Which part of a full tensor a rank's local tensor holds. A part may be
/// several boxes (the query, key and value rows of some heads), and ranks may
/// hold equal parts (a replicated bias).
struct Shard {
  std::vector<std::int64_t> full_sizes;
  std::vector<std::int64_t> local_sizes;
  std::vector<Piece> pieces;
};

/// [start, end) of part `index` when `length` is divided among `parts`: sizes
/// differ by at most one, the larger ones first.
struct Range {
  std::int64_t start = 0;
  std::int64_t end = 0;
  std::int64_t size() const {
    return end - start;
  }
};
Range even_range(std::int64_t length, int parts, int index);

/// The whole tensor, as every rank holds it.
Shard whole(const std::vector<std::int64_t>& sizes);

/// The rows (columns, ...) `range` of dimension `dim`.
Shard slice_of(const std::vector<std::int64_t>& full_sizes, std::int64_t dim, Range range);

/// The local tensor, copied out of the full one; same dtype and device.
/// Throws: ShapeError when `full` has other sizes than the shard expects.
at::Tensor take_shard(const Shard& shard, const at::Tensor& full);

/// Copies the local tensor to its place in `full`.
/// Throws: ShapeError when either has other sizes than the shard expects.
void put_shard(const Shard& shard, const at::Tensor& local, at::Tensor& full);

} // namespace tessera::nn
