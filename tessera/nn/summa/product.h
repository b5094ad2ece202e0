#pragma once

#include "tessera/nn/summa/exchange.h"
#include "tessera/nn/summa/mesh.h"

namespace tessera::nn::summa {

/// Runs one product of SUMMA: `out` (contiguous) becomes, or with `accumulate`
/// grows by, this rank's block of the result. No history is recorded.
///
/// Shapes of blocks, where `inner` is the dimension that the steps run over:
///   kAB   A [m, inner] B [inner, n] -> [m, n]
///   kABt  A [m, k] B [inner, k] -> [m, inner]
///   kAtB  A [k, inner] B [k, n] -> [inner, n]
/// A rank holds the part of `inner` of its mesh column in a matrix whose columns are
/// `inner`, and the part of its mesh row in a matrix whose rows are.
/// With `layout.transposed` the matrix whose rows are the inner dimension is
/// stored the other way round: B of kAB [n, inner], B of kABt [k, inner], C of
/// kAtB [n, inner]. If that matrix is far larger than the other two and its layout
/// gives its columns, it does not move (stationary_weights.h).
/// While tensor_parallel().shapes_only is set, nothing travels and the result is zero.
/// Collective over the mesh. Threads: one at a time.
/// Cost: 2 m n k / (q r) multiplications and additions of the whole matrices;
/// each rank sends (r - 1) times its block of the matrix that moves along rows,
/// and (q - 1) times that of the one that moves along columns.
/// Throws: ShapeError when a block does not have the size of its place on the mesh,
/// or when the dtypes differ.
/// Source: Xu et al. 2021, algorithms 1, 2, 3.
void multiply(
    const Mesh& mesh,
    Form form,
    const at::Tensor& a,
    const at::Tensor& b,
    const WeightLayout& layout,
    const at::Tensor& out,
    bool accumulate = false);

/// Returns the sizes of this rank's block of the result. Not collective.
std::vector<std::int64_t> result_sizes(
    const Mesh& mesh,
    Form form,
    const at::Tensor& a,
    const at::Tensor& b,
    const WeightLayout& layout);

} // namespace tessera::nn::summa
