#include "tessera/nn/parallel/shard.h"

#include <algorithm>
#include <numeric>

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

Lengths even_lengths(std::int64_t total, int parts) {
  Lengths lengths;
  for (int part = 0; part < parts; ++part) {
    lengths.push_back(even_range(total, parts, part).size());
  }
  return lengths;
}

Range slice_range(const Lengths& lengths, int index) {
  const auto start = std::accumulate(lengths.begin(), lengths.begin() + index, std::int64_t{0});
  return {start, start + lengths[static_cast<std::size_t>(index)]};
}

Blocks::Blocks(std::int64_t length, int parts, std::int64_t unit, bool may_be_empty) {
  if (unit < 1) {
    throw ShapeError(tessera::str("a mesh divides in units of 1 or more, found ", unit));
  }
  const bool enough = may_be_empty || length / unit >= parts;
  if (length % unit != 0 || !enough) {
    throw ShapeError(tessera::str(
        "a dimension of ",
        length,
        " cannot be divided among the ",
        parts,
        " rows or columns of a mesh in units of ",
        unit,
        "; expected a multiple of ",
        unit,
        " that is at least ",
        parts * unit));
  }
  for (int part = 0; part < parts; ++part) {
    starts_.push_back(even_range(length / unit, parts, part).start * unit);
  }
  starts_.push_back(length);
}

Lengths Blocks::lengths() const {
  Lengths lengths;
  for (int part = 0; part < parts(); ++part) {
    lengths.push_back(size(part));
  }
  return lengths;
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

Shard block_of_matrix(
    const Blocks& rows,
    int row,
    const Blocks& columns,
    int column,
    int groups,
    bool transposed) {
  const auto in_order = [&](std::int64_t r, std::int64_t c) {
    return transposed ? std::vector<std::int64_t>{c, r} : std::vector<std::int64_t>{r, c};
  };
  const std::int64_t r = rows.size(row);
  const std::int64_t c = columns.size(column);
  Shard shard;
  shard.full_sizes = in_order(rows.length(), groups * columns.length());
  shard.local_sizes = in_order(r, groups * c);
  for (int group = 0; group < groups; ++group) {
    shard.pieces.push_back(
        {in_order(rows.start(row), group * columns.length() + columns.start(column)),
         in_order(0, group * c),
         in_order(r, c)});
  }
  return shard;
}

Shard block_of_vector(const Blocks& columns, int column, int groups) {
  const std::int64_t c = columns.size(column);
  Shard shard{{groups * columns.length()}, {groups * c}, {}};
  for (int group = 0; group < groups; ++group) {
    shard.pieces.push_back({{group * columns.length() + columns.start(column)}, {group * c}, {c}});
  }
  return shard;
}

at::Tensor take_shard(const Shard& shard, const at::Tensor& full) {
  const at::NoGradGuard no_grad;
  check_sizes("full", full.sizes(), shard.full_sizes);
  // The device is not named, because the full tensor may be delayed.
  at::Tensor local = full.new_empty(shard.local_sizes);
  take_shard(shard, full, local);
  return local;
}

void take_shard(const Shard& shard, const at::Tensor& full, const at::Tensor& local) {
  const at::NoGradGuard no_grad;
  check_sizes("full", full.sizes(), shard.full_sizes);
  check_sizes("local", local.sizes(), shard.local_sizes);
  for (const Piece& piece : shard.pieces) {
    box(local, piece.local_start, piece.sizes).copy_(box(full, piece.full_start, piece.sizes));
  }
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
