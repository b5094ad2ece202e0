#pragma once

#include <cstdint>

#include "tessera/comm/collective.h"

namespace tessera::comm {

/// out[i] = op over sources[0][i], sources[1][i], ... in that order. f16 and bf16 are accumulated
/// in f32 and rounded once (nearest, ties to even); integers wrap; max and min propagate a NaN.
/// `out` may be one of the sources, but may not overlap them otherwise. `scale` multiplies a sum of
/// floating-point numbers before it is rounded.
/// Not collective. Threads: any thread.
void reduce(
    DataType type,
    ReduceOp op,
    void* out,
    const void* const* sources,
    int source_count,
    std::int64_t count,
    double scale = 1);

} // namespace tessera::comm
