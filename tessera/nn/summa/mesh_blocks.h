#pragma once

#include <cstdint>
#include <vector>

#include "tessera/nn/parallel/shard.h"
#include "tessera/nn/summa/mesh_groups.h"

namespace tessera::nn::summa {

/// The range of the inner dimension that one step of a product works on. It lies in
/// one block of the mesh rows and in one block of the mesh columns.
struct Panel {
  std::int64_t start = 0; ///< in the whole dimension
  std::int64_t size = 0;
  int row = 0; ///< of the mesh, whose block contains the range
  int column = 0; ///< of the mesh, whose block contains the range
};

/// A dimension that is divided twice on a q x r mesh: among the q mesh rows
/// where it counts the rows of a matrix (a weight's inputs, a table's words),
/// and among the r mesh columns where it counts columns (channels, logits). On a
/// square both are the same.
struct MeshBlocks {
  /// Divides `length` as Blocks does, once for each. Throws: ShapeError as Blocks.
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
  /// Returns the parts between all boundaries of both divisions: q + r - gcd(q, r)
  /// panels when the blocks are even, q on a square. No panel is empty.
  std::vector<Panel> panels() const;
  /// Returns the non-empty blocks over the mesh rows, for an exchange of B alone.
  std::vector<Panel> row_panels() const;

  Blocks over_rows;
  Blocks over_columns;
};

} // namespace tessera::nn::summa
