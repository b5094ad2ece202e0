#pragma once

#include <string>

#include <ATen/core/Tensor.h>

#include "models/activation_names.h"

namespace tessera::models {

/// Applies one of activation_names(), element by element.
/// Throws: ConfigError for another name.
at::Tensor activate(const std::string& name, const at::Tensor& x);

} // namespace tessera::models
