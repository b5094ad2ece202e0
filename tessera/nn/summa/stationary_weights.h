#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "tessera/nn/summa/exchange.h"
#include "tessera/nn/summa/mesh.h"

// The three products for activations of few rows. SUMMA moves the panels that a
// step needs. If a weight has far more elements than the activations it is
// multiplied with, it is cheaper to leave its blocks on their ranks: these read
// the activations of all mesh rows, multiply them in one product, and the owners
// of the result read its parts. In all three, X is [rows, inner], W is
// [inner, outer], and Y = X W:
//
//   kAB   Y_ij = sum over l of X_il W_lj       rank (l, j) reads X_il of all i
//   kABt  X_il = sum over j of Y_ij W_lj^T     rank (l, j) reads Y_ij of all i
//   kAtB  W_lj = sum over i of X_il^T Y_ij     rank (l, j) reads both
namespace tessera::nn::summa {

/// Returns whether stationary weights read and write fewer elements between ranks
/// than SUMMA; the answer is the same on all ranks of the mesh, whose blocks of
/// activations have `rows` rows each. It is false if a rank cannot read every
/// other one's memory, if layout.columns is not given, and on one mesh row,
/// where weights never travel. Not collective.
bool stationary_weights_pay(
    const Mesh& mesh,
    Form form,
    std::int64_t rows,
    const WeightLayout& layout);

/// Returns whether `gradients_stationary` pays for both gradients of Y = X W, whose blocks have so
/// many rows. Not collective.
bool gradients_are_one_exchange(const Mesh& mesh, std::int64_t rows, const WeightLayout& layout);

/// Computes what `multiply` computes, for products with stationary_weights_pay().
/// `accumulate` is for kAtB only. Collective over the mesh. Threads: one at a time.
/// Cost: as many multiplications; rank (l, j) reads the blocks of X or Y of all
/// q mesh rows, and q (of X: r) parts of its own block of the result.
void multiply_stationary(
    const Mesh& mesh,
    Form form,
    const at::Tensor& a,
    const at::Tensor& b,
    const WeightLayout& layout,
    const at::Tensor& out,
    bool accumulate);

/// Computes both gradients of Y = X W in one exchange, for layers with
/// stationary_weights_pay() for both; `y` is the gradient of Y. `of_x` becomes
/// y W^T; `of_weight` becomes, or with `accumulate` grows by, X^T y. Rows of y are
/// read once, and the other ranks compute their parts of `of_x` while this one
/// computes `of_weight`. Collective over the mesh. Threads: one at a time.
void gradients_stationary(
    const Mesh& mesh,
    const at::Tensor& x,
    const at::Tensor& y,
    const at::Tensor& weight,
    const WeightLayout& layout,
    const at::Tensor& of_x,
    const at::Tensor& of_weight,
    bool accumulate);

} // namespace tessera::nn::summa
