#pragma once

#include <optional>
#include <type_traits>
#include <utility>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <torch/version.h>

/// Hides the differences between libtorch 1.13.1 and the current 2.x. No other file of the library
/// asks for the version of libtorch.
namespace tessera {

/// The optional that libtorch's functions take: c10::optional up to 2.3, std::optional afterwards.
/// Write `{}` for "none" wherever that is enough.
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
template <typename T>
using TorchOptional = std::optional<T>;
#else
template <typename T>
using TorchOptional = c10::optional<T>;
#endif

/// What zero_grad() of libtorch's optimizers does when it is not told.
inline constexpr bool kZeroGradSetsToNone = TORCH_VERSION_MAJOR >= 2;

static_assert(
    std::is_same_v<
        TorchOptional<at::Device>,
        decltype(std::declval<const at::TensorOptions&>().device_opt())>,
    "this libtorch takes another kind of optional: mend TorchOptional");

/// Autocast of the processor, on this thread.
namespace cpu_autocast {
#if TORCH_VERSION_MAJOR > 2 || (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
inline bool enabled() {
  return at::autocast::is_autocast_enabled(at::kCPU);
}
inline void set_enabled(bool on) {
  at::autocast::set_autocast_enabled(at::kCPU, on);
}
inline at::ScalarType dtype() {
  return at::autocast::get_autocast_dtype(at::kCPU);
}
inline void set_dtype(at::ScalarType dtype) {
  at::autocast::set_autocast_dtype(at::kCPU, dtype);
}
#else
inline bool enabled() {
  return at::autocast::is_cpu_enabled();
}
inline void set_enabled(bool on) {
  at::autocast::set_cpu_enabled(on);
}
inline at::ScalarType dtype() {
  return at::autocast::get_autocast_cpu_dtype();
}
inline void set_dtype(at::ScalarType dtype) {
  at::autocast::set_autocast_cpu_dtype(dtype);
}
#endif
} // namespace cpu_autocast

/// True when a leaf's gradient accumulator calls the hooks of its tensor. Later versions call them
/// before the accumulator's own hooks.
inline constexpr bool kAccumulatorCallsTensorHooks = TORCH_VERSION_MAJOR < 2;

/// The version, such as "1.13.1", that messages and reports name.
inline constexpr const char* kTorchVersion = TORCH_VERSION;

} // namespace tessera
