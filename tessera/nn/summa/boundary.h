#pragma once

#include "tessera/nn/summa/blocks.h"
#include "tessera/nn/summa/mesh.h"

namespace tessera::nn::two_d {

/// Between data-parallel activations, where a rank has its samples whole, and
/// those on a mesh, where it has the samples of its row and the hidden part of
/// its column. Mesh row i works on the samples of the ranks of row i, in the
/// order of columns; with `prescaled` all ranks bring the same samples and row
/// i works on the i-th part of them.
///
/// Collective over the mesh, forward and backward. Threads: one at a time.
class Boundary {
 public:
  Boundary(MeshPtr mesh, bool prescaled) : mesh_(std::move(mesh)), prescaled_(prescaled) {}

  /// [b, ..., h] -> [q b, ..., h of my column]; prescaled [b, ...] -> [b / q].
  /// Cost: an all-to-all in the row each way (prescaled: none forward).
  at::Tensor enter(const at::Tensor& x, const Blocks& hidden) const;
  /// The inverse of `enter`.
  at::Tensor leave(const at::Tensor& x, const Blocks& hidden) const;

  /// Samples of my row from those of its ranks, whole and without a gradient:
  /// token ids, targets, masks. Undefined for an undefined tensor.
  at::Tensor samples_of_row(const at::Tensor& own) const;
  /// My samples of what all ranks of the row hold whole, losses for instance.
  /// Every rank of the row gives the gradient of its own samples.
  at::Tensor own_samples(const at::Tensor& of_row) const;

 private:
  void check_batch(const at::Tensor& x) const;
  /// Tells the mesh of activations of these sizes that come to it.
  void note_entered(at::IntArrayRef leading) const;

  MeshPtr mesh_;
  bool prescaled_;
};

} // namespace tessera::nn::two_d
