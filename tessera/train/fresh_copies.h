#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "tessera/tensor/value.h"
#include "tessera/train/split.h"

namespace tessera::detail {

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

} // namespace tessera::detail
