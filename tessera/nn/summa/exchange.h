#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/nn/summa/mesh_blocks.h"

namespace tessera::nn::two_d {

/// The three products of SUMMA; in all of them step l runs over the panels of
/// one dimension, "inner" (MeshBlocks::panels).
enum class Form {
  kAB, ///< C_ij  = sum over l of A_il B_lj
  kABt, ///< C_il = sum over j of A_ij B_lj^T
  kAtB, ///< C_lj  = sum over i of A_il^T B_ij
  kTakeB, ///< the panels of B alone: rows of a table are looked up in them
  kSumB ///< parts of a matrix divided as B alone: gradients of such rows
};

/// Whether panels of A travel along rows.
inline bool moves_a(Form form) {
  return form == Form::kAB || form == Form::kAtB;
}
/// Whether panels of B travel along columns.
inline bool moves_b(Form form) {
  return form == Form::kAB || form == Form::kABt || form == Form::kTakeB;
}
/// Whether parts of the result are added, along rows for kABt, else columns.
inline bool adds_parts(Form form) {
  return form == Form::kABt || form == Form::kAtB || form == Form::kSumB;
}

/// The matrix whose rows are the inner dimension (B in kAB and kABt, C in
/// kAtB): the same one in a product and in its gradients.
struct WeightLayout {
  // NOLINTNEXTLINE(google-explicit-constructor): most are divided, no more
  WeightLayout(
      MeshBlocks inner_rows,
      bool stored_transposed = false,
      std::int64_t whole_columns = 0)
      : rows(std::move(inner_rows)), transposed(stored_transposed), columns(whole_columns) {}

  MeshBlocks rows;
  /// Stored [columns, rows], as torch::nn::Linear stores its weight.
  bool transposed;
  /// Of the whole matrix; 0: not told, its panels always travel.
  std::int64_t columns;
};

/// One product as this rank sees it. All matrices are its own blocks.
struct Product {
  Form form;
  at::Tensor a;
  at::Tensor b;
  MeshBlocks inner;
  at::Tensor out; ///< contiguous
  /// The matrix whose rows are the inner dimension (B in kAB and kABt, C in
  /// kAtB) is stored transposed, as torch::nn::Linear stores its weight.
  bool transposed = false;
  /// `out` grows by the result.
  bool accumulate = false;
  /// The steps.
  std::vector<Panel> panels = panels_of(form, inner);

  /// The whole block of A in that mesh column, and of B in that mesh row.
  std::vector<std::int64_t> a_sizes(int column) const;
  std::vector<std::int64_t> b_sizes(int row) const;
  /// A step's part of such a block; the block itself where it is all of it.
  at::Tensor part_of_a(const at::Tensor& block, const Panel& panel) const;
  at::Tensor part_of_b(const at::Tensor& block, const Panel& panel) const;
  at::Tensor part_of_out(const Panel& panel) const;
  /// The sizes of a step's panels and of its part of the result.
  std::vector<std::int64_t> panel_a_sizes(const Panel& panel) const;
  std::vector<std::int64_t> panel_b_sizes(const Panel& panel) const;
  std::vector<std::int64_t> partial_sizes(const Panel& panel) const;
  /// Whether the parts of that step are added at this rank.
  bool adds_here(const MeshGroups& mesh, const Panel& panel) const {
    return form == Form::kABt ? panel.column == mesh.column() : panel.row == mesh.row();
  }

 private:
  static std::vector<Panel> panels_of(Form form, const MeshBlocks& inner);
};

class WindowRows;

/// How the panels of a product come to the ranks that need them.
///
/// For each product: `begin`, then for each of its panels l the panels and partial
/// results its form has, then `finish`. A panel stays valid until the panel
/// after the next is asked for. Bytes are counted in the traffic of the row and
/// column groups as one broadcast or reduction of each panel, whichever way
/// they travel.
/// Collective over the mesh. Threads: one at a time.
class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual void begin(const Product& product) = 0;
  /// Panel l of A of my row: [a.size(0), its size]. Where moves_a.
  virtual at::Tensor panel_a(int step) = 0;
  /// Panel l of B of my column, as stored. Where moves_b.
  virtual at::Tensor panel_b(int step) = 0;
  /// Where my part of the result of step l goes: its place in `out`, or a copy
  /// of that with `accumulate`, where the result is mine. Where adds_parts.
  virtual at::Tensor partial(int step) = 0;
  virtual void send_partial(int step) = 0;
  /// The parts of the others are in `out`.
  virtual void finish() = 0;

  /// Where any rank's blocks can be read: how rows of activations come to a
  /// weight that stays where it lies. Else none.
  virtual WindowRows* rows() {
    return nullptr;
  }

  /// This rank's own code has failed between two products, or in one by a
  /// PeerFailed; and all ranks go on after that, whatever each left undone:
  /// as ProcessGroup::recover.
  virtual void abandon(const std::string& why) = 0;
  virtual void recover() = 0;

  /// Returns when no other rank reads memory of `allocate` any more, which may
  /// then be changed. Not collective.
  virtual void wait_for_readers() = 0;
  /// A tensor whose blocks travel without a copy where that is possible.
  virtual at::Tensor allocate(at::IntArrayRef sizes, const at::TensorOptions& options) = 0;
  /// Memory that travels or waits to be read: what has been used at most.
  virtual std::int64_t workspace_bytes() const = 0;
  /// Shared memory of this rank that was in use at most, which no allocator of
  /// tensors counts: the workspace and what `allocate` gave.
  virtual std::int64_t shared_bytes() const = 0;
};

} // namespace tessera::nn::two_d
