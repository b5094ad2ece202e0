#pragma once

#include <ATen/core/Tensor.h>

/// A mask of dropout, 0 and one other number for each element, as a bit for an element.
/// Threads: any.
namespace tessera::recompute {

/// Returns a mask of floating point type on the processor, by rows, as words of 64 bits; the first
/// one has the bits of the mask's other number as an f64: that of `mask`, divided in its type.
at::Tensor bits_of_mask(const at::Tensor& mask, double divisor = 1);

/// Returns whether these are the bits of a mask of as many elements.
bool are_bits_of(const at::Tensor& bits, std::int64_t elements);

/// Sets y to x times the part of the mask that begins at element `first`, with the bits of that
/// product of tensors. Both contiguous, on the processor; y may be x.
void multiply_by_mask(
    const at::Tensor& x,
    const at::Tensor& bits,
    std::int64_t first,
    const at::Tensor& y);

/// Returns x times the mask, as above.
at::Tensor times_mask(const at::Tensor& x, const at::Tensor& bits);

} // namespace tessera::recompute
