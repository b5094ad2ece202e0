#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::recompute {

/// libtorch's bmm as a product that a region keeps (kept_products.h): the weighted sum of an
/// attention. Without a region it is libtorch's own; gradients have its bits.
/// Shapes: a_Nst, b_Ntd -> y_Nsd. Threads: as run().
at::Tensor kept_bmm(const at::Tensor& a, const at::Tensor& b);

} // namespace tessera::recompute
