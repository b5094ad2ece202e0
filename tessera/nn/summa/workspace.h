#pragma once

#include <array>
#include <cstdint>

#include <ATen/core/Tensor.h>

namespace tessera::nn::two_d {

/// Memory for what travels in one product. Products follow one another, so the
/// largest of each kind is enough: after the first step nothing is allocated.
/// Source: Xu et al. 2021, section 3.2.3.
class Workspace {
 public:
  enum Slot { kA0, kA1, kB0, kB1, kPartial0, kPartial1, kSlots };

  /// A contiguous tensor in the slot; what it held before is lost.
  at::Tensor take(int slot, at::IntArrayRef sizes, const at::TensorOptions& options);

  std::int64_t bytes() const;

 private:
  std::array<at::Tensor, kSlots> memory_; // bytes
};

} // namespace tessera::nn::two_d
