#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/comm/process_group.h"

namespace tessera::optim {

/// Scales `gradients` in place so that the L2 norm over all of the group's
/// gradients is at most `max_norm`; returns the norm before. The norm is that
/// of `counted`: gradients, or parts of them, of which each rank gives those
/// that no other rank of the group gives. Sums in f64, so the order of tensors
/// does not show in f32 results.
///
/// Collective over `group`: one all-reduce of one number.
/// Threads: step thread only.
/// Throws: ConfigError when max_norm <= 0.
double clip_grad_norm(
    const std::vector<at::Tensor>& gradients,
    const std::vector<at::Tensor>& counted,
    double max_norm,
    comm::ProcessGroup& group);

} // namespace tessera::optim
