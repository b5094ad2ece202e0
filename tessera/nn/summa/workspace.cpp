#include "tessera/nn/summa/workspace.h"

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>

namespace tessera::nn::summa {

at::Tensor Workspace::take(int slot, at::IntArrayRef sizes, const at::TensorOptions& options) {
  at::Tensor& memory = memory_[static_cast<std::size_t>(slot)];
  const auto dtype = c10::typeMetaToScalarType(options.dtype());
  const std::int64_t bytes =
      c10::multiply_integers(sizes) * static_cast<std::int64_t>(c10::elementSize(dtype));
  if (!memory.defined() || memory.numel() < bytes || memory.device() != options.device()) {
    memory = at::Tensor(); // frees the old buffer before the new one is allocated
    memory = at::empty({bytes}, options.dtype(at::kByte));
  }
  return memory.narrow(0, 0, bytes).view(dtype).view(sizes);
}

std::int64_t Workspace::bytes() const {
  std::int64_t total = 0;
  for (const at::Tensor& memory : memory_) {
    total += memory.defined() ? memory.numel() : 0;
  }
  return total;
}

} // namespace tessera::nn::summa
