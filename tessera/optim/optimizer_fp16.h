#pragma once

#include <memory>

#include <torch/optim/optimizer.h>

#include "tessera/model/model_set.h"
#include "tessera/optim/loss_scaling.h"

// What DistributedOptimizer does about the key fp16; private to this folder.
namespace tessera::optim {

/// The loss scale of an optimizer, in force from now on; nullptr without the key fp16.
/// Throws: ConfigError for options without fp16, contradicting ones, and LBFGS with fp16.
std::unique_ptr<LossScaling> make_loss_scaling(
    model::ModelSet& models,
    const torch::optim::Optimizer& optimizer,
    const LossScaleOptions& options);

/// Throws: ConfigError for a parameter without master, whose gradients nobody would divide by the
/// loss scale.
[[noreturn]] void refuse_unscaled(const at::Tensor& parameter);

} // namespace tessera::optim
