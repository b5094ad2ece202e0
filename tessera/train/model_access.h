#pragma once

#include <memory>

#include "tessera/train/model.h"

namespace tessera::train {

/// What the library and its tests need of a Model and a script does not.
struct ModelAccess {
  static const std::shared_ptr<model::ModelCore>& core(const Model& model) {
    return model.core_;
  }
};

} // namespace tessera::train
