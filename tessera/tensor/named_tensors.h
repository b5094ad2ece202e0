#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera {

/// Tensors by name.
using TensorMap = std::map<std::string, at::Tensor>;
/// Tensors by name in a meaningful order, such as that of registration.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

} // namespace tessera
