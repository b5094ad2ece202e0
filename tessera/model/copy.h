#pragma once

#include <torch/nn/module.h>

#include "tessera/model/model_core.h"

/// A model's state into another model: ordinary modules, averages of weights, target networks. For
/// all of them `to = decay * to + (1 - decay) * from` for parameters, and a copy of the buffers.
namespace tessera::model {

/// Throws: ConfigError unless 0 <= decay < 1.
void check_decay(double decay);

/// Into a module that is whole on every rank; its parameters and buffers go by the names of the
/// script's model. Collective over the world.
/// Throws: CheckpointError on every rank that lists the names and shapes that do not fit; `to` is
/// as it was then.
void copy_into(const ModelCore& from, torch::nn::Module& to, double decay);

/// Into a model that is on several ranks too. Each rank copies what it owns where both have one
/// partition and the same modules are divided, else the whole state goes to every rank. Collective
/// over the world. Throws: as above.
void copy_into(const ModelCore& from, ModelCore& to, double decay);

} // namespace tessera::model
