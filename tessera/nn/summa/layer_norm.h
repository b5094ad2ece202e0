#pragma once

#include "tessera/nn/parallel/shard.h"
#include "tessera/nn/summa/mesh.h"

// Layer norm of activations that are divided over a mesh, [..., h of my column].
// All functions are collective over the mesh. Threads: one at a time.
namespace tessera::nn::summa {

struct Norm {
  MeshPtr mesh;
  Blocks hidden; // h divided among the mesh columns
  double eps = 1e-5;
  /// Whether to divide by the root mean square only: no mean, no beta (RMSNorm).
  bool rms = false;
};

/// Computes (x - mean) / sqrt(variance + eps) * gamma + beta over the whole hidden
/// dimension, with `rms` x / sqrt(mean of x^2 + eps) * gamma. Each rank's mean and
/// squared distances are gathered along the row and combined without cancellation;
/// gamma and beta live on the first mesh row.
///
/// Shapes: x [..., h of my column]; gamma, beta [h of my column] on the first
/// row, any tensors with the same requires_grad elsewhere.
/// Cost: forward an all-gather of 2 numbers a position along the row (rms: an
/// all-reduce of one) and a broadcast of 2 h / r along the column; backward an
/// all-reduce and a reduction of the same sizes. 16-bit tensors are normalized in
/// f32. Source: Xu et al. 2021, section 3.2.2. The paper sums E[X] and E[X^2]; we
/// do not, because E[X^2] - E[X]^2 loses digits where the mean is large.
at::Tensor
layer_norm(const Norm& norm, const at::Tensor& x, const at::Tensor& gamma, const at::Tensor& beta);

// The forward and the backward of layer_norm without history, for other autograd nodes.

/// What the forward saves for the backward.
struct NormState {
  at::Tensor normed; // normalized x: [positions, h of my column], f32 or f64
  at::Tensor inverse; // [positions, 1]: 1 / sqrt(variance + eps)
  at::Tensor affine; // [2, h of my column]: gamma, beta (rms: [1, h])
};

struct NormGradients {
  at::Tensor x;
  at::Tensor gamma; // f32 or f64; defined on the first mesh row only
  at::Tensor beta; // like gamma; undefined for rms
};

/// Returns layer_norm(x) and fills `state`. Shapes and errors: as layer_norm.
at::Tensor norm_forward(
    const Norm& norm,
    const at::Tensor& x,
    const at::Tensor& gamma,
    const at::Tensor& beta,
    NormState& state);

/// Returns the gradients of x (`for_x`) and of gamma and beta (`for_parameters`); those not
/// asked for stay undefined. `gradient` is that of the output, in its shape.
NormGradients norm_backward(
    const Norm& norm,
    const NormState& state,
    const at::Tensor& gradient,
    bool for_x = true,
    bool for_parameters = true);

} // namespace tessera::nn::summa
