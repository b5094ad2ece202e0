#pragma once

#include <ATen/core/Tensor.h>

#include "tessera/comm/process_group.h"

namespace tessera::data_parallel {

/// The sum of the ranks' sparse gradients of one parameter, times `scale`: a coalesced COO tensor
/// of the parameter's sizes, the same on every rank to the bit. Rows travel, not the parameter: a
/// rank receives the rows and positions of all others, each padded to the longest list of the
/// ranks. At least one rank gives a gradient.
/// `own`: sparse COO, coalesced or not; undefined on a rank that has none.
/// `sizes`: the parameter's; `options`: gives dtype and device of the sum, to which the ranks' rows
/// are taken before they are added.
/// Collective over `group`. Threads: step thread only.
at::Tensor sparse_sum(
    comm::ProcessGroup& group,
    const at::Tensor& own,
    at::IntArrayRef sizes,
    const at::TensorOptions& options,
    double scale);

} // namespace tessera::data_parallel
