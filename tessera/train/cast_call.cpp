#include "tessera/train/cast_call.h"

#include "tessera/tensor/map_tensors.h"

namespace tessera::train {

at::Tensor cast_floating(const at::Tensor& tensor, at::ScalarType type) {
  return tensor.defined() && tensor.is_floating_point() ? tensor.to(type) : tensor;
}

at::Tensor cast_to_f32(const at::Tensor& tensor) {
  const bool is_short = tensor.defined() && (tensor.scalar_type() == at::kHalf ||
                                             tensor.scalar_type() == at::kBFloat16);
  return is_short ? tensor.to(at::kFloat) : tensor;
}

c10::IValue cast_floating(const c10::IValue& value, at::ScalarType type) {
  return map_tensors(
      value, [type](const at::Tensor& tensor) { return cast_floating(tensor, type); });
}

c10::IValue cast_to_f32(const c10::IValue& value) {
  return map_tensors(value, [](const at::Tensor& tensor) { return cast_to_f32(tensor); });
}

} // namespace tessera::train
