#pragma once

#include <ATen/core/Tensor.h>

// A softmax of bf16 with the bits of libtorch's own; private to this folder.
namespace tessera::half {

/// Finds out once which softmax below, if any, has the bits of this libtorch's. Whoever calls the
/// others of this file has called it.
void try_bf16_softmax();

/// Whether quick_softmax() takes it: rows of bf16 that lie together, of whole vectors.
bool softmax_is_quick(const at::Tensor& x, std::int64_t dim);

/// The softmax over the last dimension, or an undefined tensor where a row has no finite largest
/// number, or one that is none. Exponentials that f32 has no number for are not computed, as those
/// of keys that a causal mask hides.
/// Shapes: x_...N -> y_...N.
at::Tensor quick_softmax(const at::Tensor& x);

} // namespace tessera::half
