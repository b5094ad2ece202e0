#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include "tessera/half/norm_rows.h"
#include "tessera/tensor/torch_compat.h"

// Kernels of bf16 with the bits of libtorch's own that take a fraction of their time; private to
// this folder. libtorch 1.13 computes these functions in bf16 itself, rounding every step.
namespace tessera::half {

/// Finds out once whether the kernels below have the bits of this libtorch's; only then are they
/// used. Whoever calls others of this file has called it.
void try_bf16_kernels();

/// GELU with the tanh of `gelu`: a function of one number of 16 bits has 65,536 results, which
/// libtorch's kernel computes once. A gradient is that of the output times another such function.
bool gelu_is_tabled(const at::Tensor& x, bool approximates);
at::Tensor tabled_gelu(const at::Tensor& x);
at::Tensor tabled_gelu_backward(const at::Tensor& gradient, const at::Tensor& x);

/// Whether a layer norm's result follows from its rows' statistics as normalized() computes it.
bool norm_follows_from_rows(
    const at::Tensor& x,
    c10::IntArrayRef shape,
    const TorchOptional<at::Tensor>& weight,
    const TorchOptional<at::Tensor>& bias);

/// Shapes: x_...N, rows of as many numbers as x has rows, weight_N, bias_N -> y_...N.
/// Throws: UserError when the rows are not those of x.
at::Tensor normalized(
    const at::Tensor& x,
    const NormRows& rows,
    const at::Tensor& weight,
    const at::Tensor& bias);

/// The keeper, or one that keeps nothing.
NormRowsKeeper norm_rows_keeper();

} // namespace tessera::half
