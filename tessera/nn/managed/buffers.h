#pragma once

#include <array>
#include <cstdint>

#include <ATen/core/Tensor.h>

namespace tessera::nn::managed {

/// The reusable memory of layers that run one after the other. A buffer is
/// taken from its beginning, in stretches, and reset as a whole; its size is
/// fixed by `reserve`, so that nothing is allocated while layers run. Not
/// collective. Threads: one at a time. Source: Xu et al. 2021, section 3.2.3
/// and figure 6.
class Buffers {
 public:
  enum Kind {
    kCheckpoint, ///< inputs of the layers, kept until their backward
    kForward, ///< results of products
    kBackward, ///< gradients of the inputs of products
    kParameter, ///< gradients of parameters
    kConjunction, ///< the gradient between two layers
    kKinds
  };

  /// Memory for `bytes` (sum of `stretch` of all that is taken between two
  /// resets). Keeps what it has where that is enough, and resets the buffer.
  void reserve(Kind kind, std::int64_t bytes, const at::Device& device);
  /// Returns the bytes that `take` of these sizes uses.
  static std::int64_t stretch(std::int64_t elements, std::int64_t element_size);

  /// A contiguous tensor in the buffer, not initialised; valid until `reset`.
  /// Throws: InternalError when more is taken than was reserved.
  at::Tensor take(Kind kind, at::IntArrayRef sizes, const at::TensorOptions& options);
  void reset(Kind kind);

  std::int64_t bytes(Kind kind) const;
  std::int64_t bytes() const;
  /// The number of allocations so far.
  int allocations() const {
    return allocations_;
  }

 private:
  struct Buffer {
    at::Tensor memory; // bytes
    std::int64_t used = 0;
  };
  std::array<Buffer, kKinds> buffers_;
  int allocations_ = 0;
};

} // namespace tessera::nn::managed
