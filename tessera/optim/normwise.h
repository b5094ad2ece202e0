#pragma once

#include <vector>

#include <torch/optim/optimizer.h>

#include "tessera/optim/whole_norms.h"
#include "tessera/state/optimizer_state_key.h"

// What Lamb and NovoGrad share; private to this folder.
namespace tessera::optim {

/// Evaluates the closure, if there is one.
at::Tensor closure_loss(const torch::optim::Optimizer::LossClosure& closure);

/// Returns a parameter's gradient in the parameter's type.
at::Tensor gradient_of(const at::Tensor& parameter);

/// The gradients there are, as what norms are asked for.
std::vector<NormOf> gradients_of(const std::vector<torch::optim::OptimizerParamGroup>& groups);

} // namespace tessera::optim
