#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "tessera/nn/summa/mesh_blocks.h"
#include "tessera/nn/summa/mesh_groups.h"
#include "tessera/nn/summa/window_blocks.h"
#include "tessera/nn/summa/workspace.h"

namespace tessera::nn::two_d {

/// Rows of activations come to the block of a weight W that stays where it
/// lies, in memory that all ranks of a mesh share: rank (l, j), which holds
/// W_lj, reads X_il or Y_ij of all mesh rows i from their owners, and leaves
/// parts of the result for the owners to read and add.
///
/// For each product: `begin`; the rows and the part that its job has, `send`
/// after the part is computed; `finish`. Bytes are counted in the traffic of
/// the whole mesh, by the rank that reads them.
/// Collective over the mesh. Threads: one at a time.
class WindowRows {
 public:
  enum class Result { kNone, kX, kY };
  struct Job {
    WindowBlocks::Identity product;
    const MeshBlocks* inner = nullptr; ///< rows of W, columns of X
    std::int64_t outer = 0; ///< columns of W and of Y at this rank
    at::Tensor x; ///< this rank's block if X travels
    at::Tensor y; ///< likewise
    at::Tensor out; ///< contiguous block of X or Y; not if kNone
    Result result = Result::kNone;
  };

  WindowRows(const MeshGroups& mesh, WindowBlocks& blocks) : mesh_(mesh), blocks_(blocks) {}

  /// `job` must live until `finish`.
  void begin(const Job& job);
  /// [rows of the whole mesh, inner of my mesh row]
  at::Tensor rows_of_x();
  /// [rows of the whole mesh, outer of my mesh column]
  at::Tensor rows_of_y();
  /// Where my part of the result of all rows goes: [rows of the whole mesh,
  /// columns as rows_of_x or rows_of_y].
  at::Tensor part() const;
  void send();
  void finish();

  std::int64_t workspace_bytes() const {
    return workspace_.bytes();
  }

 private:
  /// Columns of what the rank of that mesh row computes a part of.
  std::int64_t part_columns(int mesh_row) const;
  /// My rows of what that rank, of that mesh row, has computed.
  at::Tensor part_of(int rank, int mesh_row);
  void add_x();
  void add_y();
  void count(int rank, std::int64_t elements) const;

  const MeshGroups& mesh_;
  WindowBlocks& blocks_;
  Workspace workspace_;
  const Job* job_ = nullptr;
};

} // namespace tessera::nn::two_d
