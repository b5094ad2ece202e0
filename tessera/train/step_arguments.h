#pragma once

#include <concepts>
#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
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

/// Returns rows of `tensor` for one microbatch along `axis`.
/// Throws: ShapeError naming the argument when the axis is missing or does not
/// divide.
at::Tensor
slice_tensor(const at::Tensor& tensor, int microbatches, int microbatch, int axis, int argument);

/// `value` with the rows of one microbatch in place of each tensor.
/// Throws: ShapeError as slice_tensor does, and for a PackedSequence, whose rows are no samples.
c10::IValue
slice_value(const c10::IValue& value, int microbatches, int microbatch, int axis, int argument);

/// Returns the length of the first tensor in `value` along `axis`; 0 without one.
std::int64_t rows_of_value(const c10::IValue& value, int axis);

/// Returns the rows of a step's batch: those of its first argument that has any. Warns once, on
/// rank 0, of arguments with other numbers of rows, one of which may be no batch. 0 stands for
/// none.
std::int64_t batch_rows(const std::vector<std::int64_t>& of_arguments, int microbatches);

/// rows_of_value of an argument of a step. The rows of a type that splits itself are not known.
template <typename T>
std::int64_t rows_of_argument(const T& value, int axis) {
  if constexpr (!Sliceable<T> && Packable<T> && Unpackable<T>) {
    return rows_of_value(pack(value), axis);
  } else {
    return 0;
  }
}

/// Returns a hash of the tensors in `value`: their types, shapes and, where they have memory, their
/// numbers.
std::uint64_t digest_of_value(const c10::IValue& value);

/// digest_of_value of an argument of a step; 0 for a type that Value does not know.
template <typename T>
std::uint64_t digest_of_argument(const T& value) {
  if constexpr (Packable<T>) {
    return digest_of_value(pack(value));
  } else {
    return 0;
  }
}

/// Returns the part of an argument of a step for one microbatch: every tensor in it is
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

/// Copies of a step's arguments for the tracing pass, which runs the step
/// function before the first step does: what the function or the model writes
/// into its arguments then must not be found by the step itself.
///
/// Every tensor inside a type that Value knows is copied with its values,
/// strides, `requires_grad` and gradient; the same view of the same memory has
/// one copy, wherever in the arguments it stands. Other types are copied by
/// their copy constructor.
/// Not collective. Threads: step thread only.
class FreshCopies {
 public:
  template <typename... Args>
  std::tuple<Args...> of(const std::tuple<Args...>& arguments) {
    return std::apply(
        [&](const Args&... each) { return std::tuple<Args...>(copy(each)...); }, arguments);
  }

 private:
  template <typename T>
  T copy(const T& value) {
    if constexpr (Packable<T>) {
      return unpack<T>(
          map_tensors(pack(value), [&](const at::Tensor& tensor) { return copy_of(tensor); }));
    } else {
      return value;
    }
  }
  at::Tensor copy_of(const at::Tensor& tensor);

  // Storage, offset, sizes and strides, and whether a gradient is needed.
  using Place = std::
      tuple<const void*, std::int64_t, std::vector<std::int64_t>, std::vector<std::int64_t>, bool>;
  std::map<Place, at::Tensor> copies_;
};

} // namespace detail
} // namespace tessera
