#include "tessera/train/cast_call.h"

namespace tessera::train {

at::Tensor cast_floating(const at::Tensor& tensor, at::ScalarType type) {
  return tensor.defined() && tensor.is_floating_point() ? tensor.to(type) : tensor;
}

at::Tensor cast_to_f32(const at::Tensor& tensor) {
  const bool is_short = tensor.defined() && (tensor.scalar_type() == at::kHalf ||
                                             tensor.scalar_type() == at::kBFloat16);
  return is_short ? tensor.to(at::kFloat) : tensor;
}

} // namespace tessera::train
