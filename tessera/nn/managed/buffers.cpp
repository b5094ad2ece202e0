#include "tessera/nn/managed/buffers.h"

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>

#include "tessera/base/error.h"

namespace tessera::nn::managed {

void Buffers::reserve(Kind kind, std::int64_t bytes, const at::Device& device) {
  Buffer& buffer = buffers_[static_cast<std::size_t>(kind)];
  if (!buffer.memory.defined() || buffer.memory.numel() < bytes ||
      buffer.memory.device() != device) {
    buffer.memory = at::Tensor(); // frees the old buffer before the new one is allocated
    buffer.memory = at::empty({bytes}, at::TensorOptions().dtype(at::kByte).device(device));
    ++allocations_;
  }
  buffer.used = 0;
}

std::int64_t Buffers::stretch(std::int64_t elements, std::int64_t element_size) {
  constexpr std::int64_t kLine = 64;
  return (elements * element_size + kLine - 1) / kLine * kLine;
}

at::Tensor Buffers::take(Kind kind, at::IntArrayRef sizes, const at::TensorOptions& options) {
  Buffer& buffer = buffers_[static_cast<std::size_t>(kind)];
  const auto dtype = c10::typeMetaToScalarType(options.dtype());
  const auto element = static_cast<std::int64_t>(c10::elementSize(dtype));
  const std::int64_t elements = c10::multiply_integers(sizes);
  const std::int64_t begin = buffer.used;
  buffer.used += stretch(elements, element);
  TESSERA_CHECK(
      buffer.memory.defined() && buffer.used <= buffer.memory.numel(),
      "buffer ",
      static_cast<int>(kind),
      " takes ",
      buffer.used,
      " bytes of ",
      bytes(kind));
  return buffer.memory.narrow(0, begin, elements * element).view(dtype).view(sizes);
}

void Buffers::reset(Kind kind) {
  buffers_[static_cast<std::size_t>(kind)].used = 0;
}

std::int64_t Buffers::bytes(Kind kind) const {
  const at::Tensor& memory = buffers_[static_cast<std::size_t>(kind)].memory;
  return memory.defined() ? memory.numel() : 0;
}

std::int64_t Buffers::bytes() const {
  std::int64_t total = 0;
  for (int kind = 0; kind < kKinds; ++kind) {
    total += bytes(static_cast<Kind>(kind));
  }
  return total;
}

} // namespace tessera::nn::managed
