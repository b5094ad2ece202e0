#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/nn/summa/mesh_blocks.h"

namespace tessera::nn::summa {

/// The three products of SUMMA, and two exchanges of B alone for embeddings. Step l
/// of each takes panel l of one dimension, "inner" (MeshBlocks::panels).
enum class Form {
  kAB, ///< C_ij  = sum over l of A_il B_lj
  kABt, ///< C_il = sum over j of A_ij B_lj^T
  kAtB, ///< C_lj  = sum over i of A_il^T B_ij
  kTakeB, ///< panels of B travel: an embedding looks rows of its table up in them
  kSumB ///< parts of a matrix divided as B are added: the gradient of such a table
};

/// Returns whether panels of A travel along rows.
inline bool moves_a(Form form) {
  return form == Form::kAB || form == Form::kAtB;
}
/// Returns whether panels of B travel along columns.
inline bool moves_b(Form form) {
  return form == Form::kAB || form == Form::kABt || form == Form::kTakeB;
}
/// Returns whether parts of the result are added: along rows for kABt, else along columns.
inline bool adds_parts(Form form) {
  return form == Form::kABt || form == Form::kAtB || form == Form::kSumB;
}

/// The layout of the matrix whose rows are the inner dimension: B in kAB and kABt,
/// C in kAtB. It is the same matrix in a product and in its gradients.
struct WeightLayout {
  // NOLINTNEXTLINE(google-explicit-constructor): for most weights the rows say everything
  WeightLayout(
      MeshBlocks inner_rows,
      bool stored_transposed = false,
      std::int64_t whole_columns = 0)
      : rows(std::move(inner_rows)), transposed(stored_transposed), columns(whole_columns) {}

  MeshBlocks rows;
  /// Stored [columns, rows], as torch::nn::Linear stores its weight.
  bool transposed;
  /// Columns of the whole matrix, or 0 when they are not given. Its panels then
  /// always travel: without them the ranks cannot compare the two ways.
  std::int64_t columns;
};

/// One product on this rank; all matrices are the blocks that it owns.
struct Product {
  Form form;
  at::Tensor a;
  at::Tensor b;
  MeshBlocks inner;
  at::Tensor out; ///< contiguous
  /// Whether the matrix whose rows are the inner dimension (B in kAB and kABt, C
  /// in kAtB) is stored transposed, as torch::nn::Linear stores its weight.
  bool transposed = false;
  /// Whether the result is added to `out` instead of overwriting it.
  bool accumulate = false;
  /// One panel for each step.
  std::vector<Panel> panels = panels_of(form, inner);

  /// Sizes of the whole block of A in that mesh column, and of B in that mesh row.
  std::vector<std::int64_t> a_sizes(int column) const;
  std::vector<std::int64_t> b_sizes(int row) const;
  /// Returns the part of such a block that `panel` covers, as a view.
  at::Tensor part_of_a(const at::Tensor& block, const Panel& panel) const;
  at::Tensor part_of_b(const at::Tensor& block, const Panel& panel) const;
  at::Tensor part_of_out(const Panel& panel) const;
  /// Sizes of a step's panels and of its part of the result.
  std::vector<std::int64_t> panel_a_sizes(const Panel& panel) const;
  std::vector<std::int64_t> panel_b_sizes(const Panel& panel) const;
  std::vector<std::int64_t> partial_sizes(const Panel& panel) const;
  /// Returns whether this rank owns the sum of that step's parts.
  bool adds_here(const MeshGroups& mesh, const Panel& panel) const {
    return form == Form::kABt ? panel.column == mesh.column() : panel.row == mesh.row();
  }

 private:
  static std::vector<Panel> panels_of(Form form, const MeshBlocks& inner);
};

class WindowRows;

/// Brings the panels of a product to the ranks that need them.
///
/// A product calls `begin`, then for each step l the panels and partial results
/// that its form has, then `finish`. A panel is valid until the next one of the
/// same matrix is asked for. Whichever way panels travel, their bytes are counted
/// in the traffic of the row and column groups as one broadcast or reduction of
/// each panel.
/// Collective over the mesh. Threads: one at a time.
class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual void begin(const Product& product) = 0;
  /// Returns the panel of A of my row, [a.size(0), panel size]. For forms with moves_a().
  virtual at::Tensor panel_a(int step) = 0;
  /// Returns the panel of B of my column, as B is stored. For forms with moves_b().
  virtual at::Tensor panel_b(int step) = 0;
  /// Returns the memory for my part of a step's result. If this rank owns the sum
  /// (Product::adds_here), that is the part of `out`, or a buffer which with
  /// `accumulate` holds a copy of it. For forms with adds_parts().
  virtual at::Tensor partial(int step) = 0;
  /// Sends what `partial` of the same step returned, now filled in, to the owner of the sum.
  virtual void send_partial(int step) = 0;
  /// Ends the product; the parts of the other ranks have been added to `out`.
  virtual void finish() = 0;

  /// Returns how rows of activations reach stationary weights, or nullptr when a
  /// rank cannot read the blocks of every other one.
  virtual WindowRows* rows() {
    return nullptr;
  }

  /// As ProcessGroup::abandon: this rank's own code failed between two products,
  /// or a product threw PeerFailed.
  virtual void abandon(const std::string& why) = 0;
  /// As ProcessGroup::recover: all ranks go on, whatever each of them left undone.
  virtual void recover() = 0;

  /// Blocks until no other rank reads memory of `allocate` any more, so that it
  /// may be changed. Not collective.
  virtual void wait_for_readers() = 0;
  /// Returns an uninitialized tensor that travels without a copy where that is possible.
  virtual at::Tensor allocate(at::IntArrayRef sizes, const at::TensorOptions& options) = 0;
  /// Returns the peak size of the buffers for panels and partial results, in bytes.
  virtual std::int64_t workspace_bytes() const = 0;
  /// Returns the peak of this rank's shared memory in bytes, which no allocator of
  /// tensors counts: staged blocks and partial results, and memory of `allocate`.
  virtual std::int64_t shared_bytes() const = 0;
};

} // namespace tessera::nn::summa
