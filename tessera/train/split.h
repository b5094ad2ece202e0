#pragma once

#include <concepts>
#include <map>
#include <vector>

#include <ATen/ATen.h>

#include "tessera/tensor/value.h"

namespace tessera {

namespace detail {

/// A user's type that knows how to give its part for a microbatch.
template <typename T>
concept Sliceable = requires(const T& value) {
  { value.tessera_slice(1, 0, 0) } -> std::convertible_to<T>;
};

/// Throws: ConfigError when `non_split_inputs` or `input_split_axes` name an argument that a step
/// of `arguments` arguments does not have, or name one in both.
void check_positions(
    const std::vector<int>& non_split_inputs,
    const std::map<int, int>& input_split_axes,
    int arguments);

/// Rows of `tensor` for one microbatch along `axis`.
/// Throws: ShapeError naming the argument when the axis is missing or does not
/// divide.
at::Tensor
slice_tensor(const at::Tensor& tensor, int microbatches, int microbatch, int axis, int argument);

/// `value` with the rows of one microbatch in place of each tensor.
/// Throws: ShapeError as slice_tensor does, and for a PackedSequence, whose rows are no samples.
c10::IValue
slice_value(const c10::IValue& value, int microbatches, int microbatch, int axis, int argument);

/// The part of an argument of a step for one microbatch: every tensor in it is
/// split along `axis`; a type with `tessera_slice(microbatches, microbatch,
/// axis)` splits itself; anything else is passed whole.
template <typename T>
T slice_argument(const T& value, int microbatches, int microbatch, int axis, int argument) {
  if constexpr (Sliceable<T>) {
    return value.tessera_slice(microbatches, microbatch, axis);
  } else if constexpr (Packable<T> && Unpackable<T>) {
    return unpack<T>(slice_value(pack(value), microbatches, microbatch, axis, argument));
  } else {
    return value;
  }
}

} // namespace detail
} // namespace tessera
