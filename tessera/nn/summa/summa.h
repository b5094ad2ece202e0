#pragma once

#include "tessera/nn/summa/exchange.h"
#include "tessera/nn/summa/mesh.h"

namespace tessera::nn::summa {

/// Returns C = A B, A B^T or A^T B over the mesh, as `form` says, with gradients of any order: the
/// gradients of each form are products of the same three forms (equations 1 to 3).
///
/// Shapes: as `multiply`; `a` and `b` are this rank's blocks, of two dimensions.
/// Collective over the mesh, forward and backward. A matrix must have the same
/// requires_grad on all ranks, because all take part in the product for its
/// gradient. Threads: one at a time. Cost: `multiply`, in the backward two
/// products. Throws: ShapeError as `multiply`.
/// Source: Xu et al. 2021, section 2.4.
at::Tensor summa_product(
    const MeshPtr& mesh,
    Form form,
    const at::Tensor& a,
    const at::Tensor& b,
    const WeightLayout& layout);

} // namespace tessera::nn::summa
