#include "tessera/nn/two_d/buffers.h"

#include <ATen/ATen.h>

namespace tessera::nn::two_d {

at::Tensor Buffers::output(
    at::IntArrayRef sizes,
    const at::TensorOptions& options) {
  return at::empty(sizes, options);
}

} // namespace tessera::nn::two_d
