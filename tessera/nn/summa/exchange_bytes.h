#pragma once

#include <array>

#include <ATen/core/Tensor.h>

#include "tessera/nn/summa/exchange.h"
#include "tessera/nn/summa/mesh.h"

namespace tessera::nn::summa {

/// Bytes of the buffers of a mesh's exchange: blocks that other ranks read and parts of results, or
/// panels; rows of X, and rows of Y, that a rank gathers for a stationary weight.
using ExchangeBytes = std::array<double, 3>;

/// Returns what a product leaves, which the products after it use again. Weights are
/// taken to lie in memory of Exchange::allocate. `a` is read for products alone. Sizes of `a`, `b`
/// and `out` are read, not their numbers. Not collective.
ExchangeBytes exchange_bytes(
    const Mesh& mesh,
    Form form,
    const at::Tensor& a,
    const at::Tensor& b,
    const WeightLayout& layout,
    const at::Tensor& out);

/// Returns of each buffer the most that a product and both of its gradients leave.
ExchangeBytes exchange_bytes_with_gradients(
    const Mesh& mesh,
    Form form,
    const at::Tensor& a,
    const at::Tensor& b,
    const WeightLayout& layout,
    const at::Tensor& out);

} // namespace tessera::nn::summa
