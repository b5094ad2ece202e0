#pragma once

#include "tessera/nn/summa/exchange.h"
#include "tessera/nn/summa/mesh.h"

namespace tessera::nn::two_d {

/// Runs one product of SUMMA: `out` (contiguous) becomes, or with `accumulate`
/// grows by, this rank's block of the result. No history is recorded.
///
/// Shapes of blocks, `inner` the dimension that the steps run over:
///   kAB   A [m, inner] B [inner, n] -> [m, n]
///   kABt  A [m, k] B [inner, k] -> [m, inner]
///   kAtB  A [k, inner] B [k, n] -> [inner, n]
/// where a matrix whose columns are `inner` has those of its mesh column, and one
/// whose rows are has those of its mesh row.
/// With `layout.transposed` the matrix whose rows are the inner dimension is
/// stored the other way round: B of kAB [n, inner], B of kABt [k, inner], C of
/// kAtB [n, inner]. Where that matrix is far larger than the other two, and its
/// layout tells its columns, it does not move (stationary_weights.h).
/// While tensor_parallel().shapes_only nothing travels and the result is zero.
/// Collective over the mesh. Threads: one at a time.
/// Cost: 2 m n k / (q r) multiplications and additions of the whole matrices;
/// each rank sends (r - 1) times its block of the matrix that moves along rows,
/// and (q - 1) times that of the one that moves along columns.
/// Throws: ShapeError when a block does not have the size of its place.
/// Source: Xu et al. 2021, algorithms 1, 2, 3.
void multiply(
    const Mesh& mesh,
    Form form,
    const at::Tensor& a,
    const at::Tensor& b,
    const WeightLayout& layout,
    const at::Tensor& out,
    bool accumulate = false);

/// Sizes of the result's block.
std::vector<std::int64_t> result_sizes(
    const Mesh& mesh,
    Form form,
    const at::Tensor& a,
    const at::Tensor& b,
    const WeightLayout& layout);

} // namespace tessera::nn::two_d
