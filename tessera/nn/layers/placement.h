#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/nn/parallel/collectives.h"
#include "tessera/nn/parallel/context.h"
#include "tessera/nn/parallel/parameter_creation.h"
#include "tessera/nn/summa/mesh_blocks.h"

// Where an activation lies, and how it gets from one place to another.
//
// Letters: B samples of all ranks, b of this rank, B/q those of my mesh row; I
// channels, i this rank's or those of my mesh column.
namespace tessera::nn {

enum class Placement {
  kOwnSamples, // x_b...I: this rank's samples, all channels
  kReplicated, // x_B...I: everything on every rank
  kSharded, // x_B...i: all samples, this rank's channels
  kOnMesh // x_(B/q)...i: samples of my mesh row, channels of my mesh column
};

/// Returns where the rest of the model keeps activations.
Placement outside_placement(const TensorParallel& parallel);

/// Returns where the distributed transformer keeps them between its products: as
/// outside for `speed`, sharded for `memory`, in blocks on a mesh for `2d`.
///
/// Megatron's distribution has them replicated. With samples of their own, the
/// ranks do between the products what they would do without tensor
/// parallelism; the all-gather and the reduce-scatter around the products move
/// the bytes of Megatron's all-reduce.
/// Source: Karakus et al. 2021, appendix F; Xu et al. 2021, section 3.2.1.
Placement inside_placement(const TensorParallel& parallel);

/// Returns where an activation lies whose features (heads, inner channels) are always divided: in
/// blocks on a mesh, else sharded.
Placement divided_placement(const TensorParallel& parallel);

// Collective over the TP_GROUP (on a mesh over its rows and columns), in
// forward and backward, unless they say otherwise; one rank: the argument.
// Threads: those that run user code.

/// Brings x between the outside and the inside placement, `channels` wide in
/// all; `samples` are the ranks' batch sizes (unused when they are prescaled or
/// on a mesh).
at::Tensor enter(const TensorParallel& parallel, const at::Tensor& x, const Lengths& samples);
at::Tensor leave(
    const TensorParallel& parallel,
    const at::Tensor& x,
    std::int64_t channels,
    const Lengths& samples);

/// x_b...I -> x_B...i and back, by all-to-all.
at::Tensor
samples_to_shard(const TensorParallel& parallel, const at::Tensor& x, const Lengths& samples);
at::Tensor shard_to_samples(
    const TensorParallel& parallel,
    const at::Tensor& x,
    std::int64_t channels,
    const Lengths& samples);

/// x_B...I, replicated, and x_B...i. Backward: the other one.
at::Tensor shard_channels(const TensorParallel& parallel, const at::Tensor& x);
at::Tensor
gather_channels(const TensorParallel& parallel, const at::Tensor& x, std::int64_t channels);

/// Sum over the ranks of x_B...I, put where `to` says (not on a mesh).
/// `samples` for kOwnSamples. Backward: every rank gets the gradient of the
/// whole sum (all-gather of samples, nothing, all-gather of channels).
at::Tensor sum_of_partials(
    const TensorParallel& parallel,
    const at::Tensor& x,
    Placement to,
    const Lengths& samples);

/// Batch sizes of all ranks. Cost: an all-gather of 8 bytes, none when they are
/// prescaled (then all have `own`) or on a mesh (where nothing asks for them).
Lengths samples_of_ranks(const TensorParallel& parallel, std::int64_t own);

/// `how`, with the memory in which peers of a mesh read blocks where they lie.
ParameterCreation creation_for(const TensorParallel& parallel, ParameterCreation how = {});

/// A dimension divided among the rows and columns of the mesh. `what` names it
/// in errors: "DistributedLinear: in_features".
/// Throws: ConfigError without a mesh, ShapeError when a row or column would
/// have nothing.
summa::MeshBlocks
mesh_blocks(const TensorParallel& parallel, std::int64_t length, const char* what);

} // namespace tessera::nn
