#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/comm/process_group.h"

namespace tessera::data_parallel {

/// The sum of the ranks' sparse gradients of one parameter, times `scale`: a coalesced COO tensor
/// of the parameter's sizes, the same on every rank to the bit. Rows travel, not the parameter: a
/// rank receives the rows and positions of all others, each padded to the longest list of the
/// ranks. At least one rank gives a gradient.
/// `own`: sparse COO, coalesced or not; undefined on a rank that has none.
/// `parameter`: gives sizes, dtype and device.
/// Collective over `group`. Threads: step thread only.
at::Tensor sparse_sum(
    comm::ProcessGroup& group,
    const at::Tensor& own,
    const at::Tensor& parameter,
    double scale);

} // namespace tessera::data_parallel
