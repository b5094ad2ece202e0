#pragma once

#include "tessera/nn/summa/exchange.h"
#include "tessera/nn/summa/mesh.h"

namespace tessera::nn::two_d {

/// Return C = A B, A B^T or A^T B over the mesh, with gradients of any order: the
/// gradients of each are products of the same three kinds (equations 1 to 3).
///
/// Shapes: as `multiply`; `a` and `b` are this rank's blocks, of two dimensions.
/// Collective over the mesh, forward and backward. A matrix must have the same
/// requires_grad on all ranks, because all take part in the product for its
/// gradient. Threads: one at a time. Cost: `multiply`, in the backward two
/// products. Throws: ShapeError as `multiply`.
/// Source: Xu et al. 2021, section 2.4.
at::Tensor
summa_ab(const MeshPtr& mesh, const at::Tensor& a, const at::Tensor& b, const WeightLayout& layout);
at::Tensor summa_abt(
    const MeshPtr& mesh,
    const at::Tensor& a,
    const at::Tensor& b,
    const WeightLayout& layout);
at::Tensor summa_atb(
    const MeshPtr& mesh,
    const at::Tensor& a,
    const at::Tensor& b,
    const WeightLayout& layout);

} // namespace tessera::nn::two_d
