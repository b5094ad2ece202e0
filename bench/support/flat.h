#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera {

/// Where each tensor of a list lies in one flat buffer of their dtype.
struct FlatLayout {
  std::vector<std::int64_t> offsets; // in elements, one for each tensor
  std::int64_t elements = 0; // length of the buffer, padding included
};

/// Lays tensors one after the other, each at a multiple of `alignment_bytes`
/// (so that a copy or a reduction of any of them starts at a cache line).
///
/// Throws: ShapeError when dtypes or devices differ or `alignment_bytes` is no
/// multiple of the element size.
FlatLayout flat_layout(at::TensorList tensors, std::int64_t alignment_bytes = 64);

/// One 1-D buffer with the elements of all tensors; padding is zero.
///
/// Throws: ShapeError as flat_layout; also for an empty list.
at::Tensor flatten(at::TensorList tensors, const FlatLayout& layout);

/// Views into `buffer`, one for each tensor of `like`, with its sizes. Writing
/// to a view writes the buffer.
///
/// Throws: ShapeError when the buffer does not fit the layout.
std::vector<at::Tensor>
views_of(const at::Tensor& buffer, at::TensorList like, const FlatLayout& layout);

/// Copies the buffer's parts back into the tensors.
void unflatten_into(const at::Tensor& buffer, at::TensorList tensors, const FlatLayout& layout);

} // namespace tessera
