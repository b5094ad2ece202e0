#include "tessera/tensor/dtype.h"

#include <array>
#include <utility>

#include "tessera/base/error.h"

namespace tessera {

namespace {

constexpr std::array<std::pair<at::ScalarType, const char*>, 11> kNames{{
    {at::kFloat, "float32"},
    {at::kDouble, "float64"},
    {at::kHalf, "float16"},
    {at::kBFloat16, "bfloat16"},
    {at::kByte, "uint8"},
    {at::kChar, "int8"},
    {at::kShort, "int16"},
    {at::kInt, "int32"},
    {at::kLong, "int64"},
    {at::kBool, "bool"},
    {at::kComplexFloat, "complex64"},
}};

} // namespace

std::string dtype_name(at::ScalarType dtype) {
  for (const auto& [type, name] : kNames) {
    if (type == dtype) {
      return name;
    }
  }
  throw ConfigError(
      str("tensors of type ",
          at::toString(dtype),
          " are not supported; convert to a plain number type such as "
          "float32"));
}

std::int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.numel() * static_cast<std::int64_t>(tensor.itemsize()) : 0;
}

} // namespace tessera
