#pragma once

#include <cstdint>
#include <vector>

#include "tessera/nn/parallel/shard.h"
#include "tessera/nn/summa/mesh_groups.h"

namespace tessera::nn::two_d {

/// What one step of a product works on: a stretch of the inner dimension that
/// lies in one block of the mesh's rows and in one of its columns.
struct Panel {
  std::int64_t start = 0; ///< in the whole dimension
  std::int64_t size = 0;
  int row = 0; ///< the mesh row whose block it lies in
  int column = 0; ///< the mesh column whose block it lies in
};

/// A dimension that is divided twice on a q x r mesh: among the q mesh rows
/// where it counts the rows of a matrix (a weight's inputs, a table's words),
/// and among the r mesh columns where it counts columns (channels, logits). On a
/// square both are the same.
struct MeshBlocks {
  /// As Blocks, for both. Throws: ShapeError.
  MeshBlocks(
      const MeshGroups& mesh,
      std::int64_t length,
      std::int64_t unit = 1,
      bool may_be_empty = false)
      : over_rows(length, mesh.rows(), unit, may_be_empty),
        over_columns(length, mesh.columns(), unit, may_be_empty) {}

  std::int64_t length() const {
    return over_rows.length();
  }
  /// The dimension cut wherever either division cuts it: q + r - gcd(q, r)
  /// panels when the blocks are even, q on a square. No panel is empty.
  std::vector<Panel> panels() const;
  /// The blocks over the rows alone, for a matrix that meets no columns.
  std::vector<Panel> row_panels() const;

  Blocks over_rows;
  Blocks over_columns;
};

} // namespace tessera::nn::two_d
