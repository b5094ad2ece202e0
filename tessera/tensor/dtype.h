#pragma once

#include <cstdint>
#include <string>

#include <ATen/core/Tensor.h>

namespace tessera {

/// Returns "float32", "bfloat16", "int64", "bool", ...: the names in files and configurations.
/// Throws: ConfigError for a type without a name (quantized ones).
std::string dtype_name(at::ScalarType dtype);

/// Returns the bytes of the elements of `tensor`, as if it were contiguous; 0 when it is undefined.
/// A meta tensor counts the bytes it would take.
std::int64_t bytes_of(const at::Tensor& tensor);

} // namespace tessera
