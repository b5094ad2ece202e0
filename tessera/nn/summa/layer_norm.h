#pragma once

#include "tessera/nn/summa/blocks.h"
#include "tessera/nn/summa/mesh.h"

// The two halves of `layer_norm` (functional.h) without history, for those who
// call them by themselves. Collective over the mesh. Threads: one at a time.
namespace tessera::nn::two_d {

struct Norm {
  MeshPtr mesh;
  Blocks hidden;
  double eps;
};

/// What the backward needs.
struct NormState {
  at::Tensor normed; // [positions, h of my column], f32
  at::Tensor inverse; // [positions, 1]: 1 / sqrt(variance + eps)
  at::Tensor affine; // [2, h of my column]: gamma, beta
};

struct NormGradients {
  at::Tensor x;
  at::Tensor gamma; // on mesh row 0, else undefined; f32
  at::Tensor beta;
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
