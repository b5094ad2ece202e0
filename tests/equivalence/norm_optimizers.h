#pragma once

#include <memory>
#include <vector>

#include <torch/torch.h>

#include "tessera/optim/lamb.h"
#include "tessera/optim/novograd.h"

/// LAMB and NovoGrad of one process, written for this program after the papers' algorithms: the
/// library's own are what is looked at.
namespace tessera::equivalence {

using Groups = std::vector<torch::optim::OptimizerParamGroup>;

std::unique_ptr<torch::optim::Optimizer> plain_lamb(Groups groups, const optim::LambOptions& first);
/// With decay outside of the moment, and the first norm as the first average.
std::unique_ptr<torch::optim::Optimizer> plain_novograd(
    Groups groups,
    const optim::NovoGradOptions& first);

} // namespace tessera::equivalence
