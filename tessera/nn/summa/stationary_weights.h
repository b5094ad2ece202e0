#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "tessera/nn/summa/exchange.h"
#include "tessera/nn/summa/mesh.h"

// The three products for activations of few rows. SUMMA moves panels of
// whatever a step needs; where a weight has far more elements than the
// activations that meet it, its blocks stay where they lie: the rows of all
// mesh rows come to them, are multiplied in one product, and parts of the
// result go back. In all three X [rows, inner] meets W [inner, outer], and
// Y = X W:
//
//   kAB   Y_ij = sum over l of X_il W_lj       rank (l, j) takes X_il of all i
//   kABt  X_il = sum over j of Y_ij W_lj^T     rank (l, j) takes Y_ij of all i
//   kAtB  W_lj = sum over i of X_il^T Y_ij     rank (l, j) takes both
namespace tessera::nn::two_d {

/// Whether fewer elements are read and written between ranks that way; the same
/// on all ranks of the mesh, whose blocks of activations have `rows` rows each.
/// Never where a rank cannot read every other one's memory, where
/// layout.columns is not told, or on one mesh row, whose weights never travel.
bool stationary_weights_pay(
    const Mesh& mesh,
    Form form,
    std::int64_t rows,
    const WeightLayout& layout);

/// As `multiply`, where stationary_weights_pay.
/// Cost: the same multiplications; rank (l, j) reads the blocks of X or Y of all
/// q mesh rows, and q (of X: r) parts of its own block of the result.
void multiply_stationary(
    const Mesh& mesh,
    Form form,
    const at::Tensor& a,
    const at::Tensor& b,
    const WeightLayout& layout,
    const at::Tensor& out,
    bool accumulate);

/// Both gradients of Y = X W, where stationary_weights_pay for both: `of_x` becomes Y W^T
/// (Y being Y's gradient), and `of_weight` becomes X^T Y or grows by it. Rows
/// of Y are read once, and the weight's gradient is computed while the others'
/// parts of the input's come.
void gradients_stationary(
    const Mesh& mesh,
    const at::Tensor& x,
    const at::Tensor& y,
    const at::Tensor& weight,
    const WeightLayout& layout,
    const at::Tensor& of_x,
    const at::Tensor& of_weight,
    bool accumulate);

} // namespace tessera::nn::two_d
