#pragma once

#include "tessera/nn/parallel/shard.h"
#include "tessera/nn/summa/mesh.h"

namespace tessera::nn::two_d {

/// Between data-parallel activations, where a rank has its samples whole, and
/// those on a mesh, where it has the samples of its row and the hidden part of
/// its column. Mesh row i works on the samples of the ranks of row i, in the
/// order of columns; with `prescaled` all ranks bring the same samples and row
/// i works on the i-th part of them. Ranks of a row bring as many samples each.
///
/// Collective over the mesh, forward and backward. Threads: one at a time.
class Boundary {
 public:
  Boundary(MeshPtr mesh, bool prescaled) : mesh_(std::move(mesh)), prescaled_(prescaled) {}

  /// [b, ..., h] -> [r b, ..., h of my column]; prescaled [b, ...] -> [b / q].
  /// Cost: an all-to-all in the row each way (prescaled: none forward).
  at::Tensor enter(const at::Tensor& x, const Blocks& hidden) const;
  /// The inverse of `enter`.
  at::Tensor leave(const at::Tensor& x, const Blocks& hidden) const;

  /// Samples of my row from those of its ranks, whole and without a gradient:
  /// token ids, targets. Undefined for an undefined tensor.
  at::Tensor samples_of_row(const at::Tensor& own) const;
  /// My samples of what all ranks of the row hold whole, losses for instance.
  /// Every rank of the row gives the gradient of its own samples.
  at::Tensor own_samples(const at::Tensor& of_row) const;
  /// A mask over attention scores for the samples of my row and the heads of my
  /// column, with its gradient. `samples`: those this rank brings.
  /// Shapes: [1 or b, 1 or H, S, T] -> [1 or r b, 1 or heads of mine, S, T].
  /// The gradient of a mask that all samples share covers this rank's heads and
  /// samples; data parallelism sums over the ranks.
  at::Tensor mask_for_heads(const at::Tensor& mask, std::int64_t samples, const Blocks& heads)
      const;

 private:
  void check_batch(const at::Tensor& x) const;
  at::Tensor row_samples(const at::Tensor& own) const;
  /// Tells the mesh of activations of these sizes that come to it.
  void note_entered(at::IntArrayRef leading) const;

  MeshPtr mesh_;
  bool prescaled_;
};

} // namespace tessera::nn::two_d
