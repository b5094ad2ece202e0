#pragma once

#include <concepts>

#include <ATen/ATen.h>

#include "tessera/tensor/value.h"

namespace tessera {

namespace detail {

template <typename T>
concept Packable = requires(const T& value) {
  { Value<T>::pack(value) } -> std::same_as<c10::IValue>;
};

/// A user's type that knows how to give its part for a microbatch.
template <typename T>
concept Sliceable = requires(const T& value) {
  { value.tessera_slice(1, 0, 0) } -> std::convertible_to<T>;
};

/// Rows of `tensor` for one microbatch along `axis`.
/// Throws: ShapeError naming the argument when the axis is missing or does not
/// divide.
at::Tensor
slice_tensor(const at::Tensor& tensor, int microbatches, int microbatch, int axis, int argument);

/// The part of an argument of a step for one microbatch: every tensor in it is
/// split along `axis`; a type with `tessera_slice(microbatches, microbatch,
/// axis)` splits itself; anything else is passed whole.
template <typename T>
T slice_argument(const T& value, int microbatches, int microbatch, int axis, int argument) {
  if constexpr (Sliceable<T>) {
    return value.tessera_slice(microbatches, microbatch, axis);
  } else if constexpr (Packable<T>) {
    return unpack<T>(map_tensors(pack(value), [&](const at::Tensor& tensor) {
      return slice_tensor(tensor, microbatches, microbatch, axis, argument);
    }));
  } else {
    return value;
  }
}

} // namespace detail
} // namespace tessera
