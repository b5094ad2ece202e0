#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/nn/summa/blocks.h"
#include "tessera/nn/summa/mesh.h"

// Small collectives along a row or a column of a mesh, without history. While
// tensor_parallel().shapes_only they return the same shapes and move nothing.
// Collective over the row or column. Threads: one at a time.
namespace tessera::nn::two_d {

enum class Along { kRow, kColumn };

/// Ranks of the line in mesh order: rank in the group of each position.
comm::ProcessGroup& group_along(const Mesh& mesh, Along along);
int position_along(const Mesh& mesh, Along along);

/// In place.
void sum_along(const Mesh& mesh, Along along, const at::Tensor& tensor);
void max_along(const Mesh& mesh, Along along, const at::Tensor& tensor);

/// The line's tensors in mesh order; all of one size.
/// Result: [q, sizes of the tensor].
at::Tensor gather_along(const Mesh& mesh, Along along, const at::Tensor& tensor);

/// The line's blocks joined along `dim`; `blocks` says how long each is.
at::Tensor join_along(
    const Mesh& mesh,
    Along along,
    const at::Tensor& block,
    std::int64_t dim,
    const Blocks& blocks);

/// Tensor i goes to position i of the line; result: those that came, in mesh
/// order. `sizes` are the sizes of what comes from each position; `longest` is
/// the most elements that any rank of the line sends another.
std::vector<at::Tensor> exchange_along(
    const Mesh& mesh,
    Along along,
    const std::vector<at::Tensor>& to_each,
    const std::vector<std::vector<std::int64_t>>& sizes,
    std::int64_t longest);

} // namespace tessera::nn::two_d
