#pragma once

#include "tessera/nn/parallel/shard.h"
#include "tessera/nn/summa/mesh.h"

namespace tessera::nn::summa {

/// Converts between data-parallel activations, where a rank has its own samples
/// with all features, and activations on a mesh, where it has the samples of its
/// mesh row and the features of its mesh column. Mesh row i works on the samples
/// of its ranks, in the order of columns; each of them brings equally many. With
/// `prescaled` all ranks bring the same samples and row i takes their i-th part.
///
/// Collective over the mesh, forward and backward. Threads: one at a time.
class Boundary {
 public:
  Boundary(MeshPtr mesh, bool prescaled) : mesh_(std::move(mesh)), prescaled_(prescaled) {}

  /// Shapes: [b, ..., h] -> [r b, ..., h of my column]; prescaled [b, ...] -> [b / q, ...].
  /// Cost: an all-to-all in the row, forward and backward (prescaled: none forward); before it an
  /// all-gather of 16 bytes in the row, then of 16 r bytes in the column.
  /// Throws: ShapeError when `x` does not have the length of `hidden`, or when
  /// the mesh rows do not divide a prescaled batch; on all ranks of the mesh when ranks bring
  /// another number of samples, or samples of other sizes, than they may.
  at::Tensor enter(const at::Tensor& x, const Blocks& hidden) const;
  /// Inverts `enter`. Cost: as `enter` (prescaled: gathers forward, none backward).
  at::Tensor leave(const at::Tensor& x, const Blocks& hidden) const;

  /// Collects what the ranks of my row bring of a tensor that has no features
  /// to divide and no gradient: token ids, targets. An undefined tensor stays undefined.
  /// Shapes: [b, ...] -> [r b, ...]; prescaled [b, ...] -> [b / q, ...].
  at::Tensor samples_of_row(const at::Tensor& own) const;
  /// Takes this rank's samples out of a tensor that all ranks of the row hold
  /// alike, for instance losses. Each rank brings the gradient of its own samples.
  /// Shapes: the inverse of `samples_of_row`.
  at::Tensor own_samples(const at::Tensor& of_row) const;
  /// Takes out of a mask over attention scores the part for the samples of my row
  /// and the heads of my column; differentiable. This rank brings `samples` samples.
  /// Shapes: [1 or b, 1 or H, S, T] -> [1 or r b, 1 or heads of mine, S, T].
  /// The gradient of a mask that all samples share covers this rank's heads and
  /// samples; data parallelism sums over the ranks.
  at::Tensor mask_for_heads(const at::Tensor& mask, std::int64_t samples, const Blocks& heads)
      const;

 private:
  void check_batch(const at::Tensor& x) const;
  at::Tensor row_samples(const at::Tensor& own) const;
  /// Compares what this rank brings (sizes without features) with what the others bring. Returns
  /// whether all ranks of the mesh know that it is the same on each of them.
  bool agree(at::IntArrayRef leading) const;

  MeshPtr mesh_;
  bool prescaled_;
};

} // namespace tessera::nn::summa
