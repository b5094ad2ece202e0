#pragma once

#include <ATen/core/Tensor.h>

namespace tessera::nn::two_d {

class Buffers {
 public:
  at::Tensor output(at::IntArrayRef sizes, const at::TensorOptions& options);
};

} // namespace tessera::nn::two_d
