#pragma once

#include <ATen/core/ivalue.h>

#include "tessera/checkpoint/optimizer_state.h"
#include "tessera/train/distributed_optimizer.h"

// Parts of an optimizer's state on their way between ranks; private to train.
namespace tessera::train {

/// The process's model, or nullptr.
ModelCore* only_model();

/// This rank's parameters by name, each as the tensor the optimizer updates.
NamedTensors updated_tensors(const ModelCore& model, const DistributedOptimizer* optimizer);

c10::IValue pack_state(const checkpoint::OptimizerState& state);
checkpoint::OptimizerState unpack_state(const c10::IValue& value);

/// Adds another rank's parameters, group by group.
void merge_into(checkpoint::OptimizerState& whole, checkpoint::OptimizerState part);

} // namespace tessera::train
