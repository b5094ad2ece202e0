#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "tessera/nn/summa/mesh_blocks.h"
#include "tessera/nn/summa/mesh_groups.h"
#include "tessera/nn/summa/window_blocks.h"
#include "tessera/nn/summa/workspace.h"

namespace tessera::nn::summa {

/// Brings rows of activations to stationary weights, in memory that all ranks of a
/// mesh share: rank (l, j), which holds the block W_lj, reads X_il or Y_ij of all
/// mesh rows i from their owners, and leaves parts of the result for the owners to
/// read and add.
///
/// A product calls `begin`, then `rows_of_x`, `rows_of_y` and `part` as its job
/// needs them, then `send` once the part is computed, then `finish`. Bytes are
/// counted in the traffic of the whole mesh, by the rank that reads them.
/// Collective over the mesh. Threads: one at a time.
class WindowRows {
 public:
  enum class Result { kNone, kX, kY };
  struct Job {
    WindowBlocks::Identity product;
    const MeshBlocks* inner = nullptr; ///< rows of W, columns of X
    std::int64_t outer = 0; ///< columns of W and of Y at this rank
    at::Tensor x; ///< this rank's block if X travels, else undefined
    at::Tensor y; ///< this rank's block if Y travels, else undefined
    at::Tensor out; ///< contiguous block of the result; undefined for kNone
    Result result = Result::kNone;
  };

  WindowRows(const MeshGroups& mesh, WindowBlocks& blocks) : mesh_(mesh), blocks_(blocks) {}

  /// Begins a product; `job` must live until `finish`.
  void begin(const Job& job);
  /// Returns [rows of the whole mesh, inner of my mesh row].
  at::Tensor rows_of_x();
  /// Returns [rows of the whole mesh, outer of my mesh column].
  at::Tensor rows_of_y();
  /// Returns the memory for my part of the result of all rows: [rows of the whole
  /// mesh, columns as rows_of_x for kX or rows_of_y for kY].
  at::Tensor part() const;
  /// Lets the owners of the result read the part.
  void send();
  /// Adds the parts of this rank's result, if the job has one, and ends the product.
  void finish();

  std::int64_t workspace_bytes() const {
    return workspace_.bytes();
  }

 private:
  /// Returns the columns of the part that a rank of that mesh row computes.
  std::int64_t part_columns(int mesh_row) const;
  /// Returns my rows of the part that `rank`, of mesh row `mesh_row`, has computed.
  at::Tensor part_of(int rank, int mesh_row);
  void add_x();
  void add_y();
  void count(int rank, std::int64_t elements) const;

  const MeshGroups& mesh_;
  WindowBlocks& blocks_;
  Workspace workspace_;
  const Job* job_ = nullptr;
};

} // namespace tessera::nn::summa
