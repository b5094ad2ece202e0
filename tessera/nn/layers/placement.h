#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/nn/parallel/collectives.h"
#include "tessera/nn/parallel/context.h"

// Where an activation lies, and how it gets from one place to another.
//
// Letters: B samples of all ranks, b of this rank; I channels, i this rank's.
namespace tessera::nn {

enum class Placement {
  kOwnSamples, // x_b...I: this rank's samples, all channels
  kReplicated, // x_B...I: everything on every rank
  kSharded // x_B...i: all samples, this rank's channels
};

/// Where the rest of the model keeps activations.
Placement outside_placement(const TensorParallel& parallel);

/// Where the distributed transformer keeps them between its products: as
/// outside for `speed`, sharded for `memory`.
///
/// Megatron's distribution has them replicated. With samples of their own, the
/// ranks do between the products what they would do without tensor
/// parallelism; the all-gather and the reduce-scatter around the products move
/// the bytes of Megatron's all-reduce.
/// Source: Karakus et al. 2021, appendix F.
Placement inside_placement(const TensorParallel& parallel);

// Each is one autograd node around one collective, adjoint in the backward;
// one rank: the argument. Collective over the TP_GROUP unless it says
// otherwise. Threads: those that run user code.

/// x_...I, replicated -> x_...i. Backward: all-gather of channels.
/// Forward is not collective, backward is.
at::Tensor shard_channels(const TensorParallel& parallel, const at::Tensor& x);

/// x_...i -> x_...I, replicated. Backward: this rank's channels, since every
/// rank's gradient is the whole one.
at::Tensor
gather_channels(const TensorParallel& parallel, const at::Tensor& x, std::int64_t channels);

/// x_b...I -> x_B...i and back, by all-to-all. `dim` is divided, the last one
/// unless given.
at::Tensor samples_to_shard(
    const TensorParallel& parallel,
    const at::Tensor& x,
    std::int64_t dim,
    const Lengths& samples);
at::Tensor
samples_to_shard(const TensorParallel& parallel, const at::Tensor& x, const Lengths& samples);
at::Tensor shard_to_samples(
    const TensorParallel& parallel,
    const at::Tensor& x,
    std::int64_t channels,
    const Lengths& samples);

/// Slices of `split_dim` to their ranks, joined along `merge_dim`: see
/// collectives.h. Backward: the way back.
at::Tensor exchanged(
    const TensorParallel& parallel,
    const at::Tensor& x,
    std::int64_t split_dim,
    const Lengths& split_lengths,
    std::int64_t merge_dim,
    const Lengths& merge_lengths);

/// x_b... -> x_B.... Backward: the sum of all ranks' gradients of this rank's
/// samples (reduce-scatter).
at::Tensor
gather_samples(const TensorParallel& parallel, const at::Tensor& x, const Lengths& samples);

/// x_B..., equal on all ranks -> x_b.... Backward: every rank gives the
/// gradient of its samples (all-gather).
at::Tensor
keep_own_samples(const TensorParallel& parallel, const at::Tensor& x, const Lengths& samples);

/// Sum over the ranks of x_B...I, put where `to` says. `samples` for
/// kOwnSamples. Backward: every rank gets the gradient of the whole sum
/// (all-gather of samples, nothing, all-gather of channels).
at::Tensor sum_of_partials(
    const TensorParallel& parallel,
    const at::Tensor& x,
    Placement to,
    const Lengths& samples);

/// Brings x between the outside and the inside placement, `channels` wide in
/// all; `samples` are the ranks' batch sizes (unused when they are prescaled).
at::Tensor enter(const TensorParallel& parallel, const at::Tensor& x, const Lengths& samples);
at::Tensor leave(
    const TensorParallel& parallel,
    const at::Tensor& x,
    std::int64_t channels,
    const Lengths& samples);

/// Batch sizes of all ranks. Cost: an all-gather of 8 bytes, none when they are
/// prescaled (then all have `own`).
Lengths samples_of_ranks(const TensorParallel& parallel, std::int64_t own);

/// Inverted dropout of an activation in this place, see random_streams.h; the
/// tensor itself when not training or the probability is 0.
at::Tensor drop(
    const TensorParallel& parallel,
    const at::Tensor& x,
    Placement placement,
    double probability,
    bool training);

} // namespace tessera::nn
