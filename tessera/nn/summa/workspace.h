#pragma once

#include <array>
#include <cstdint>

#include <ATen/core/Tensor.h>

namespace tessera::nn::summa {

/// Buffers for the panels and partial results of one product. Products follow one
/// another, so one buffer of the largest size for each slot is enough, and after
/// the first step nothing is allocated. Threads: one at a time.
/// Source: Xu et al. 2021, section 3.2.3.
class Workspace {
 public:
  enum Slot { kA0, kA1, kB0, kB1, kPartial0, kPartial1, kSlots };

  /// Returns a contiguous tensor in the slot; the slot's former contents are lost.
  at::Tensor take(int slot, at::IntArrayRef sizes, const at::TensorOptions& options);

  /// Returns the bytes of all slots.
  std::int64_t bytes() const;

 private:
  std::array<at::Tensor, kSlots> memory_; // bytes
};

} // namespace tessera::nn::summa
