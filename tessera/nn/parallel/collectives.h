#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/nn/parallel/context.h"

// What primitives.h and the built-in layers are made of: one collective over
// the TP_GROUP each, without autograd, for slices that need not be equal.
// Slices of unequal length are padded to the longest on their way, zeros that
// count as traffic. With one rank each returns its argument; under shapes_only
// a result has the right sizes and nothing else.
// Collective over the TP_GROUP. Threads: those that run user code.
namespace tessera::nn {

/// Length of every rank's slice of one dimension.
using Lengths = std::vector<std::int64_t>;

Lengths even_lengths(std::int64_t total, int parts);

/// What every rank says of itself, by rank: `own` lists as many numbers on all
/// ranks; entry k of the result has everybody's number k.
/// Cost: one all-gather of 8 bytes a number.
std::vector<Lengths> exchange_numbers(
    const TensorParallel& parallel,
    const std::vector<std::int64_t>& own);
/// The same for one number.
Lengths exchange_length(const TensorParallel& parallel, std::int64_t own);

/// Sum over the ranks, in place on a contiguous tensor.
void all_reduce(const TensorParallel& parallel, const at::Tensor& tensor);

/// Joins the ranks' tensors along `dim`; rank r's is lengths[r] long there.
at::Tensor gather(
    const TensorParallel& parallel,
    const at::Tensor& tensor,
    std::int64_t dim,
    const Lengths& lengths);

/// Sum over the ranks, of which this rank keeps its slice of `dim`.
at::Tensor reduce_scatter(
    const TensorParallel& parallel,
    const at::Tensor& tensor,
    std::int64_t dim,
    const Lengths& lengths);

/// Slice r of `split_dim` (split_lengths[r] long) goes to rank r; what came
/// from rank r (merge_lengths[r] long along `merge_dim`) is joined in the order
/// of ranks. The two dimensions differ.
at::Tensor exchange(
    const TensorParallel& parallel,
    const at::Tensor& tensor,
    std::int64_t split_dim,
    const Lengths& split_lengths,
    std::int64_t merge_dim,
    const Lengths& merge_lengths);

/// The result of a collective in flight; call it once, it waits. The tensors
/// it works on must not be touched before.
using Pending = std::function<at::Tensor()>;

/// The same collectives, started: the caller computes something else before it
/// asks for the result.
Pending start_all_reduce(const TensorParallel& parallel, const at::Tensor& tensor);
Pending start_reduce_scatter(
    const TensorParallel& parallel,
    const at::Tensor& tensor,
    std::int64_t dim,
    const Lengths& lengths);
Pending start_exchange(
    const TensorParallel& parallel,
    const at::Tensor& tensor,
    std::int64_t split_dim,
    const Lengths& split_lengths,
    std::int64_t merge_dim,
    const Lengths& merge_lengths);

// For layers that lay out their operands by rank themselves and so save the
// copies: blocks_n... has one block for each rank in front, all of one size.

/// [n, ...] -> [...]: sum over the ranks of the blocks meant for this rank.
at::Tensor reduce_scatter_blocks(const TensorParallel& parallel, const at::Tensor& blocks);
/// [...] -> [n, ...].
at::Tensor gather_blocks(const TensorParallel& parallel, const at::Tensor& block);

} // namespace tessera::nn
