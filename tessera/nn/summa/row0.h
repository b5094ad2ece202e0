#pragma once

#include "tessera/nn/summa/mesh.h"

namespace tessera::nn::two_d {

/// y + vector, in place, where the vector lives on mesh row 0 and is broadcast
/// along columns; its gradient is the columns' sum and comes to row 0.
///
/// Shapes: y [..., n of my column], vector [n of my column] on row 0, any
/// tensor with the same requires_grad elsewhere. Collective over the column,
/// forward and backward. Threads: one at a time. Cost: one broadcast, in the
/// backward one reduction, of n elements. Source: Xu et al. 2021, section 3.2.2
/// and figure 5.
at::Tensor add_from_row0(const MeshPtr& mesh, const at::Tensor& y, const at::Tensor& vector);

/// The tensor of mesh row 0 on all ranks of the column. No history.
at::Tensor broadcast_from_row0(
    const Mesh& mesh,
    const at::Tensor& vector,
    at::IntArrayRef sizes,
    const at::TensorOptions& options);

/// Adds the column's tensors into row 0's; returns it there, an undefined
/// tensor elsewhere. No history.
at::Tensor reduce_to_row0(const Mesh& mesh, const at::Tensor& tensor);

} // namespace tessera::nn::two_d
