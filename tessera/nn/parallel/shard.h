#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::nn {

// Which part of a dimension, or of a tensor, a rank holds.

/// [start, end) of a dimension.
struct Range {
  std::int64_t start = 0;
  std::int64_t end = 0;
  std::int64_t size() const {
    return end - start;
  }
};

/// Part `index` of `length` divided among `parts`: sizes differ by at most one,
/// the larger ones first.
Range even_range(std::int64_t length, int parts, int index);

/// Length of every rank's slice of one dimension.
using Lengths = std::vector<std::int64_t>;
Lengths even_lengths(std::int64_t total, int parts);
/// Slice `index` of a dimension that is divided so.
Range slice_range(const Lengths& lengths, int index);

/// A dimension divided among the rows or columns of a mesh: block i is
/// [start(i), start(i) + size(i)). Blocks need not be equal.
class Blocks {
 public:
  /// Divides `length` into `parts` blocks that are multiples of `unit` and
  /// differ by one unit at most, the larger ones first. Attention heads are a
  /// unit. With `may_be_empty` the last parts may be left without a unit.
  /// Throws: ShapeError when `unit` does not divide `length`, or when there are
  /// fewer units than parts; the text names the lengths that work.
  Blocks(std::int64_t length, int parts, std::int64_t unit = 1, bool may_be_empty = false);

  int parts() const {
    return static_cast<int>(starts_.size()) - 1;
  }
  std::int64_t length() const {
    return starts_.back();
  }
  std::int64_t start(int part) const {
    return starts_[static_cast<std::size_t>(part)];
  }
  std::int64_t size(int part) const {
    return start(part + 1) - start(part);
  }
  Lengths lengths() const;

  bool operator==(const Blocks&) const = default;

 private:
  std::vector<std::int64_t> starts_;
};

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

/// The whole tensor, as every rank holds it.
Shard whole(const std::vector<std::int64_t>& sizes);

/// The rows (columns, ...) `range` of dimension `dim`.
Shard slice_of(const std::vector<std::int64_t>& full_sizes, std::int64_t dim, Range range);

/// Block (row, column) of a matrix whose rows and columns are divided among
/// those of a mesh. The full matrix may be `groups` such matrices beside each
/// other (query, key and value), of which the local one has its block of each;
/// the groups are along the columns. `transposed`: both are stored
/// [columns, rows].
Shard block_of_matrix(
    const Blocks& rows,
    int row,
    const Blocks& columns,
    int column,
    int groups = 1,
    bool transposed = false);
/// The same of a vector of `groups` times the columns.
Shard block_of_vector(const Blocks& columns, int column, int groups = 1);

/// The local tensor, copied out of the full one; same dtype and device.
/// Throws: ShapeError when `full` has other sizes than the shard expects.
at::Tensor take_shard(const Shard& shard, const at::Tensor& full);
/// The same into a tensor that is there already.
void take_shard(const Shard& shard, const at::Tensor& full, const at::Tensor& local);

/// Copies the local tensor to its place in `full`.
/// Throws: ShapeError when either has other sizes than the shard expects.
void put_shard(const Shard& shard, const at::Tensor& local, at::Tensor& full);

} // namespace tessera::nn
