#pragma once

#include <cstdint>
#include <functional>

#include <ATen/core/Tensor.h>

#include "tessera/nn/parallel/context.h"

// Dropout inside distributed modules. Whatever the ranks' default generators
// hold, a tensor that all ranks of the TP_GROUP have must lose the same
// elements on all of them, and parts of one tensor must not lose the same
// pattern. Each mask has a stream of its own, seeded with one number from this
// rank's default CPU generator: who restores that generator and calls again
// (activation checkpointing) gets the same mask.
namespace tessera::nn {

/// Draws a mask of inverted dropout: the same one each time.
using DrawMask = std::function<at::Tensor()>;

/// The mask, in sizes and type of `like`, for a tensor of which every rank
/// holds another part. Takes the seed from the default generator now. Not collective. Threads:
/// those that run user code.
DrawMask sharded_mask(const TensorParallel& parallel, const at::Tensor& like, double probability);

/// The mask of a tensor that all ranks hold, as above.
/// Collective over the TP_GROUP: tp rank 0 sends its seed (8 bytes).
/// Threads: those that run user code.
DrawMask
replicated_mask(const TensorParallel& parallel, const at::Tensor& like, double probability);

/// For those who draw the masks of one tensor in parts, and draw them again: the
/// seed of a stream for a tensor of which every rank holds another part, one
/// number from the default generator; and the mask of inverted dropout that a
/// seed gives, in sizes and type of `like`.
/// Not collective. Threads: those that run user code.
std::uint64_t stream_of_shard(const TensorParallel& parallel);
at::Tensor dropout_mask(const at::Tensor& like, double probability, std::uint64_t seed);

} // namespace tessera::nn
