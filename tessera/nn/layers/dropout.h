#pragma once

#include <cstdint>

#include "tessera/nn/layers/placement.h"
#include "tessera/random/mask.h"

// Dropout inside of distributed layers, and where their activations lie in the tensors of a step's
// whole batch, for random numbers that do not depend on the layout.
// Threads: those that run user code.
namespace tessera::nn {

/// Inverted dropout of an activation in this place, `channels` wide in all, see
/// random_streams.h; the tensor itself when not training or
/// the probability is 0. Collective when replicated, but where the thread has a
/// random::Stream.
at::Tensor drop(
    const TensorParallel& parallel,
    const at::Tensor& x,
    Placement placement,
    double probability,
    bool training,
    std::int64_t channels);

/// The place of an activation of `rows` rows whose last of `dims` dimensions has `channels` in all.
/// Throws: UserError when its ranks do not bring equally many samples.
random::Place place_of_activation(
    const random::Stream& stream,
    const TensorParallel& parallel,
    Placement placement,
    std::int64_t rows,
    std::int64_t dims,
    std::int64_t channels);

/// The place of this rank's attention weights, [rows, heads here, S, T]: heads from `first_head` on
/// of `all_heads`, of the samples that this rank's products gather.
/// Throws: as above.
random::Place place_of_attention(
    const random::Stream& stream,
    const TensorParallel& parallel,
    std::int64_t rows,
    std::int64_t first_head,
    std::int64_t all_heads);

} // namespace tessera::nn
