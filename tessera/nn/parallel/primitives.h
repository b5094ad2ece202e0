#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "tessera/nn/parallel/context.h"

// Collectives over the TP_GROUP for the forward of distributed modules, each an
// autograd node whose backward is the adjoint collective. With one rank they
// return their argument; while tracing (shapes_only) they only shape it. Slices
// need not be equal: slice i of a dimension is even_range(length, tp, i).
// Collective over the TP_GROUP, in forward and in backward. Threads: those that
// run user code. Source: Karakus et al. 2021, appendix I.6.
namespace tessera::nn {

/// Concatenation of the ranks' tensors along `dim`; their lengths along `dim`
/// may differ. Backward: reduce-scatter along `dim`.
at::Tensor fused_allgather_for_tp(const at::Tensor& tensor, std::int64_t dim);

/// Sum over the ranks. Backward: the gradient as it is, since every rank's
/// result is the same tensor.
at::Tensor fwd_allreduce_for_tp(const at::Tensor& tensor);

/// The tensor itself. Backward: sum of the gradients over the ranks.
at::Tensor bwd_allreduce_for_tp(const at::Tensor& tensor);

/// Slice i along `split_dim` goes to rank i; the received slices are joined
/// along `merge_dim`. Backward: the same with the dimensions exchanged.
at::Tensor
scatter_and_merge_for_tp(const at::Tensor& tensor, std::int64_t split_dim, std::int64_t merge_dim);

/// Sum over the ranks, of which rank i keeps slice i along `dim`. Backward:
/// all-gather along `dim`.
at::Tensor reduce_scatter_for_tp(const at::Tensor& tensor, std::int64_t dim);

} // namespace tessera::nn
