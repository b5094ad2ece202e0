#pragma once

#include "tessera/nn/parallel/shard.h"
#include "tessera/nn/summa/mesh.h"
#include "tessera/nn/summa/mesh_blocks.h"

// Functions on activations that are divided over a mesh: [b of my row, s, h of my
// column]. All are collective over the mesh, forward and backward. Threads: one
// at a time.
namespace tessera::nn::summa {

/// How the weight of a linear layer is divided over a mesh: its inputs among the
/// mesh rows (those of an activation among the mesh columns), its outputs among
/// the mesh columns.
struct LinearLayout {
  MeshBlocks in;
  Blocks out;
  /// Number of matrices of `out` outputs each in one weight (query, key, value).
  int groups = 1;
};

/// Computes y = x W^T + b by SUMMA; the bias lives on the first mesh row.
///
/// Shapes: x [..., in of my column], weight [groups * out of my column, in of
/// my row], bias [groups * out of my column] on the first row, elsewhere any
/// tensor with the same requires_grad, undefined for none -> [..., groups * out
/// of my column].
/// Cost: `multiply` of kAB, in the backward of kABt and kAtB.
/// Source: Xu et al. 2021, sections 2.4 and 3.2.2.
at::Tensor linear(
    const MeshPtr& mesh,
    const LinearLayout& layout,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias);

/// Computes the logits x E^T of an output layer that shares the table of an embedding.
/// Shapes: x [..., h of my column], table [v of my row, h of my column] ->
/// [..., v of my column]; `hidden` is h of the whole table.
/// Cost: `multiply` of kABt, in the backward of kAB and kAtB.
at::Tensor tied_linear(
    const MeshPtr& mesh,
    const at::Tensor& x,
    const at::Tensor& table,
    const MeshBlocks& vocabulary,
    std::int64_t hidden);

/// Looks up rows of a table [v, h] that is divided into q x r blocks. All ranks of a
/// mesh row pass the same ids.
///
/// Shapes: table [v of my row, h of my column], ids [...] -> [..., h of my
/// column]. Row `padding_row` gets no gradient (-1: every row gets one).
/// Cost: every rank sends (q - 1) times its block, in the backward the same.
/// Throws: ShapeError when an id is not in 0 .. v - 1.
/// Source: Xu et al. 2021, section 3.2.1.
at::Tensor embedding(
    const MeshPtr& mesh,
    const at::Tensor& table,
    const at::Tensor& ids,
    const MeshBlocks& vocabulary,
    std::int64_t padding_row = -1);

/// Computes the cross entropy of every position in f32; it is 0 where the target is
/// `ignored`. All ranks of a row get the same result and must bring the same gradient.
///
/// Shapes: logits [..., v of my column], targets [...] -> [...].
/// Cost: three all-reduces of one number a position along the row, none
/// backward. Source: Xu et al. 2021, section 3.2.2.
at::Tensor cross_entropy(
    const MeshPtr& mesh,
    const at::Tensor& logits,
    const at::Tensor& targets,
    const Blocks& vocabulary,
    std::int64_t ignored = -100);

} // namespace tessera::nn::summa
