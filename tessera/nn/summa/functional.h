#pragma once

#include "tessera/nn/summa/blocks.h"
#include "tessera/nn/summa/mesh.h"

// Functions on activations that lie on a mesh: [b of my row, s, h of my
// column]. Collective over the mesh, forward and backward. Threads: one at a
// time.
namespace tessera::nn::two_d {

/// (x - mean) / sqrt(variance + eps) * gamma + beta over the whole hidden
/// dimension. The moments of each rank's part are gathered along the row and
/// combined exactly; gamma and beta live on mesh row 0.
///
/// Shapes: x [..., h of my column]; gamma, beta [h of my column] on row 0, any
/// tensors with the same requires_grad elsewhere.
/// Cost: forward an all-gather of 2 numbers a position along the row and a
/// broadcast of 2 h / q along the column; backward an all-reduce and a
/// reduction of the same. 16-bit tensors are normed in f32. Source: Xu et al.
/// 2021, section 3.2.2. There E[X] and E[X^2] are summed; E[X^2] - E[X]^2 loses
/// digits where the mean is large.
at::Tensor layer_norm(
    const MeshPtr& mesh,
    const at::Tensor& x,
    const at::Tensor& gamma,
    const at::Tensor& beta,
    const Blocks& hidden,
    double eps);

/// Rows of a table [v, h] in q x q blocks; ids are equal on all ranks of a row.
///
/// Shapes: table [v of my row, h of my column], ids [...] -> [..., h of my
/// column]. Row `padding_row` gets no gradient (-1: none such).
/// Cost: every rank sends (q - 1) times its block, in the backward the same.
/// Throws: ShapeError when an id is not in 0 .. v - 1.
/// Source: Xu et al. 2021, section 3.2.1.
at::Tensor embedding(
    const MeshPtr& mesh,
    const at::Tensor& table,
    const at::Tensor& ids,
    const Blocks& vocabulary,
    std::int64_t padding_row = -1);

/// Cross entropy of every position, in f32; 0 where the target is `ignored`.
/// All ranks of a row get the same result, and give it the same gradient.
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

} // namespace tessera::nn::two_d
