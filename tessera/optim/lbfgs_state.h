#pragma once

#include <memory>

#include <torch/optim/optimizer.h>

#include "tessera/optim/lbfgs.h"

// LBFGS between torch, ranks and checkpoints; private to this folder.
namespace tessera::optim {

/// Makes the state of optim::LBFGS known to checkpoints, by parameter: d,
/// prev_grad, `old_dirs_<i>`, `old_stps_<i>` as tensors, the rest as numbers.
/// Harmless to repeat. Threads: step thread only.
void register_lbfgs_state();

/// An optim::LBFGS over the parameters and options of a torch::optim::LBFGS;
/// any other optimizer as it is.
/// Throws: ConfigError for a torch::optim::LBFGS that has been stepped already.
std::unique_ptr<torch::optim::Optimizer> with_own_lbfgs(
    std::unique_ptr<torch::optim::Optimizer> optimizer);

} // namespace tessera::optim
