#pragma once

#include <cstdint>
#include <vector>

#include <torch/optim/optimizer.h>

namespace tessera::model {
class ModelCore;
} // namespace tessera::model

namespace tessera::optim {

/// Returns whether the optimizer updates this 16-bit parameter of `group` without a master. Not
/// collective. Throws: ConfigError for an f16 parameter, which only masters keep through a loss
/// scale.
bool rounds_itself(
    const torch::optim::Optimizer& optimizer,
    const torch::optim::OptimizerParamGroup& group,
    const at::Tensor& parameter);

/// Tells an optimizer with stochastic_rounding where the parameters of the partitioned models
/// stand in what the script made; others are left alone. Not collective. Throws: as
/// StochasticRounding.
void tell_places(
    torch::optim::Optimizer& optimizer,
    const std::vector<model::ModelCore*>& models,
    std::uint64_t seed);

} // namespace tessera::optim
