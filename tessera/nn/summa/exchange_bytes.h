#pragma once

#include <array>

#include <ATen/core/Tensor.h>

#include "tessera/nn/summa/exchange.h"
#include "tessera/nn/summa/mesh.h"

namespace tessera::nn::summa {

/// Bytes of the buffers of a mesh's exchange in shared memory: blocks that other ranks read and
/// parts of results; rows of X, and rows of Y, that a rank gathers for a stationary weight.
using ExchangeBytes = std::array<double, 3>;

/// The matrices of a product, of which sizes are read and no numbers. Embeddings have no `a`.
struct ProductMatrices {
  at::Tensor a;
  at::Tensor b;
  WeightLayout layout;
  at::Tensor out;
};

/// Returns what a product leaves, which the products after it use again. Weights are taken to lie
/// in memory of Exchange::allocate. Not collective.
ExchangeBytes exchange_bytes(const Mesh& mesh, Form form, const ProductMatrices& of);

/// Returns of each buffer the most that a product and both of its gradients leave.
ExchangeBytes exchange_bytes_with_gradients(const Mesh& mesh, Form form, const ProductMatrices& of);

} // namespace tessera::nn::summa
