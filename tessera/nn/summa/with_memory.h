#pragma once

#include <ATen/ATen.h>

namespace tessera::nn::summa {

/// Returns the tensor, or a copy of it where it has no memory of its own, as a parameter that is
/// kept in parts (sharding/parted_tensor.h): only operators find the numbers of such a parameter,
/// and what sends a block takes its pointer. Not collective. Threads: any.
inline at::Tensor with_memory(const at::Tensor& tensor) {
  const bool has = tensor.numel() == 0 || tensor.is_meta() || tensor.storage().data() != nullptr;
  return has ? tensor : tensor.clone();
}

} // namespace tessera::nn::summa
