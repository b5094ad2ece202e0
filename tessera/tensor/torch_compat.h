#pragma once

#include <optional>
#include <type_traits>
#include <utility>

#include <ATen/ATen.h>
#include <torch/version.h>

/// What differs between libtorch 1.13.1 and the current 2.x, in one place. No
/// other file of the library asks for the version of libtorch.
namespace tessera {

/// The optional that libtorch's functions take: c10::optional up to 2.3, after
/// that std::optional. Write `{}` for "none" wherever that is enough.
#if TORCH_VERSION_MAJOR > 2 || \
    (TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR >= 4)
template <typename T>
using TorchOptional = std::optional<T>;
#else
template <typename T>
using TorchOptional = c10::optional<T>;
#endif

static_assert(
    std::is_same_v<
        TorchOptional<at::Device>,
        decltype(std::declval<const at::TensorOptions&>().device_opt())>,
    "this libtorch takes another kind of optional: mend TorchOptional");

/// "1.13.1": what messages and reports say was used.
inline constexpr const char* kTorchVersion = TORCH_VERSION;

} // namespace tessera
