#pragma once

#include <string>

#include "tessera/model/model_core.h"

namespace tessera::model {

/// What the public functions of these names do, see train/checkpoints.h. Collective over the
/// world.
void save_module(const ModelCore& core, const std::string& path);
void load_module(ModelCore& core, const std::string& path);

} // namespace tessera::model
