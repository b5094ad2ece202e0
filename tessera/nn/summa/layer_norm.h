#pragma once

#include "tessera/nn/parallel/shard.h"
#include "tessera/nn/summa/mesh.h"

// Layer norm of activations that lie on a mesh, [..., h of my column].
// Collective over the mesh. Threads: one at a time.
namespace tessera::nn::two_d {

struct Norm {
  MeshPtr mesh;
  Blocks hidden; // over the mesh columns
  double eps = 1e-5;
  /// By the root mean square: no mean, no beta.
  bool rms = false;
};

/// (x - mean) / sqrt(variance + eps) * gamma + beta over the whole hidden
/// dimension. The moments of each rank's part are gathered along the row and
/// combined exactly; gamma and beta live on the first mesh row. With `rms`
/// x / sqrt(mean of x^2 + eps) * gamma.
///
/// Shapes: x [..., h of my column]; gamma, beta [h of my column] on the first
/// row, any tensors with the same requires_grad elsewhere.
/// Cost: forward an all-gather of 2 numbers a position along the row (rms: an
/// all-reduce of one) and a broadcast of 2 h / r along the column; backward an
/// all-reduce and a reduction of the same. 16-bit tensors are normed in f32.
/// Source: Xu et al. 2021, section 3.2.2. There E[X] and E[X^2] are summed;
/// E[X^2] - E[X]^2 loses digits where the mean is large.
at::Tensor
layer_norm(const Norm& norm, const at::Tensor& x, const at::Tensor& gamma, const at::Tensor& beta);

// Its two halves without history, for those who call them by themselves.

/// What the backward needs.
struct NormState {
  at::Tensor normed; // [positions, h of my column], f32
  at::Tensor inverse; // [positions, 1]: 1 / sqrt(variance + eps)
  at::Tensor affine; // [2, h of my column]: gamma, beta (rms: [1, h])
};

struct NormGradients {
  at::Tensor x;
  at::Tensor gamma; // on the first mesh row, else undefined; f32
  at::Tensor beta; // likewise; undefined for rms
};

at::Tensor norm_forward(
    const Norm& norm,
    const at::Tensor& x,
    const at::Tensor& gamma,
    const at::Tensor& beta,
    NormState& state);

/// Gradients that are not asked for stay undefined.
NormGradients norm_backward(
    const Norm& norm,
    const NormState& state,
    const at::Tensor& gradient,
    bool for_x = true,
    bool for_parameters = true);

} // namespace tessera::nn::two_d
