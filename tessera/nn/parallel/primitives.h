#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include "tessera/nn/parallel/context.h"
#include "tessera/nn/parallel/shard.h"

// Collectives for the forward of distributed modules, each an autograd node
// whose backward is the adjoint collective, to any order. With one rank they
// return their argument; while tracing (shapes_only) they only shape it.
// Dimensions may be counted from the back.
// Collective over `ranks` (without `ranks`: over the TP_GROUP in force), in
// forward and in backward unless they say otherwise. Threads: those that run
// user code. Source: Karakus et al. 2021, appendix I.6.
namespace tessera::nn {

class Ranks; // collectives.h

/// Concatenation of the ranks' tensors along `dim`; rank r's is lengths[r] long
/// there. Backward: reduce-scatter along `dim`.
at::Tensor fused_allgather_for_tp(
    const Ranks& ranks,
    const at::Tensor& tensor,
    std::int64_t dim,
    const Lengths& lengths);
/// The ranks tell each other their lengths first.
at::Tensor fused_allgather_for_tp(const at::Tensor& tensor, std::int64_t dim);

/// Sum over the ranks. Backward: the gradient as it is, since every rank's
/// result is the same tensor.
at::Tensor fwd_allreduce_for_tp(const Ranks& ranks, const at::Tensor& tensor);
at::Tensor fwd_allreduce_for_tp(const at::Tensor& tensor);

/// The tensor itself. Backward: sum of the gradients over the ranks.
at::Tensor bwd_allreduce_for_tp(const Ranks& ranks, const at::Tensor& tensor);
at::Tensor bwd_allreduce_for_tp(const at::Tensor& tensor);

/// Slice r along `split_dim` goes to rank r; the received slices are joined
/// along `merge_dim`, where rank r's is merge_lengths[r] long. Backward: the
/// same with the dimensions exchanged.
at::Tensor scatter_and_merge_for_tp(
    const Ranks& ranks,
    const at::Tensor& tensor,
    std::int64_t split_dim,
    const Lengths& split_lengths,
    std::int64_t merge_dim,
    const Lengths& merge_lengths);
/// Divides `split_dim` evenly; the ranks tell each other their lengths of
/// `merge_dim` first.
at::Tensor
scatter_and_merge_for_tp(const at::Tensor& tensor, std::int64_t split_dim, std::int64_t merge_dim);

/// Sum over the ranks, of which rank r keeps slice r along `dim`. Backward:
/// all-gather along `dim`.
at::Tensor reduce_scatter_for_tp(
    const Ranks& ranks,
    const at::Tensor& tensor,
    std::int64_t dim,
    const Lengths& lengths);
/// Divides `dim` evenly.
at::Tensor reduce_scatter_for_tp(const at::Tensor& tensor, std::int64_t dim);

/// This rank's slice of a tensor that all ranks hold. Backward: every rank
/// gives the gradient of its slice (all-gather). The forward is not collective.
at::Tensor slice_for_tp(
    const Ranks& ranks,
    const at::Tensor& tensor,
    std::int64_t dim,
    const Lengths& lengths);

/// The inverse: the ranks' slices joined to a tensor that all hold. Backward:
/// this rank's slice, since every rank's gradient is the whole one; not
/// collective.
at::Tensor join_slices_for_tp(
    const Ranks& ranks,
    const at::Tensor& tensor,
    std::int64_t dim,
    const Lengths& lengths);

} // namespace tessera::nn
