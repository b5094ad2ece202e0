#pragma once

#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "tessera/nn/module/module_call.h"
#include "tessera/tensor/value.h"

/// Casts the arguments and results of a model that computes in 16 bits.
namespace tessera::train {

/// Returns floating-point tensors in `type`, all others and what holds them as they are. Autograd
/// goes through.
at::Tensor cast_floating(const at::Tensor& tensor, at::ScalarType type);
c10::IValue cast_floating(const c10::IValue& value, at::ScalarType type);
/// Does the same with f16 and bf16 tensors, in f32.
at::Tensor cast_to_f32(const at::Tensor& tensor);
c10::IValue cast_to_f32(const c10::IValue& value);

/// Is true for types whose values may hold tensors: those that can travel between ranks and are no
/// plain number or text.
template <typename T>
inline constexpr bool kMayHoldTensors =
    !std::is_arithmetic_v<T> && !std::is_enum_v<T> && !std::is_pointer_v<T> &&
    !std::is_same_v<T, std::string> && detail::Packable<T> && detail::Unpackable<T>;

/// Returns the value as `cast` makes its tensors.
template <typename T, typename Cast>
T mapped(const T& value, const Cast& cast) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return cast(value);
  } else if constexpr (kMayHoldTensors<T>) {
    return unpack<T>(cast(pack(value)));
  } else {
    return value;
  }
}

/// One argument of a call. A variable of the caller's stays one: what the call leaves in it reaches
/// the caller, in f32.
template <typename Arg>
class CastArgument {
  using T = std::decay_t<Arg>;
  static constexpr bool kCasts = kMayHoldTensors<T>;
  static constexpr bool kIsVariable =
      std::is_lvalue_reference_v<Arg> && !std::is_const_v<std::remove_reference_t<Arg>>;
  using Held = std::conditional_t<kCasts, T, Arg&&>;

 public:
  CastArgument(Arg&& given, at::ScalarType type)
      : given_(static_cast<Arg&&>(given)), held_(hold(static_cast<Arg&&>(given), type)) {
    if constexpr (kCasts && kIsVariable) {
      before_ = pack(held_);
    }
  }

  /// Returns what the call is given.
  decltype(auto) get() {
    if constexpr (!kCasts) {
      return static_cast<Arg&&>(held_);
    } else if constexpr (kIsVariable) {
      return static_cast<T&>(held_);
    } else {
      return static_cast<T&&>(held_);
    }
  }
  /// Hands changes of a variable back to the caller, after the call.
  void hand_back() {
    if constexpr (kCasts && kIsVariable) {
      if (!detail::same_packed(before_, pack(held_))) {
        given_ = mapped(held_, [](const auto& given) { return cast_to_f32(given); });
      }
    }
  }

 private:
  static Held hold(Arg&& given, at::ScalarType type) {
    if constexpr (kCasts) {
      return mapped<T>(given, [type](const auto& value) { return cast_floating(value, type); });
    } else {
      return static_cast<Arg&&>(given);
    }
  }

  Arg&& given_;
  Held held_;
  c10::IValue before_;
};

/// Calls `call` with floating-point tensors of the arguments in `type`; returns its result with
/// those of 16 bits in f32. Not collective. Threads: as `call`. Source: the library's
/// documentation, `fp16` (FP16_Module).
template <typename Call, typename... Args>
auto call_in(at::ScalarType type, const Call& call, Args&&... args) {
  std::tuple<CastArgument<Args>...> cast{CastArgument<Args>(std::forward<Args>(args), type)...};
  const auto run = [&]() -> decltype(auto) {
    return std::apply([&](auto&... a) -> decltype(auto) { return call(a.get()...); }, cast);
  };
  const auto hand_back = [&] { std::apply([](auto&... a) { (a.hand_back(), ...); }, cast); };
  using Result = std::decay_t<decltype(run())>;
  if constexpr (std::is_void_v<Result>) {
    run();
    hand_back();
  } else {
    Result result = mapped<Result>(run(), [](const auto& given) { return cast_to_f32(given); });
    hand_back();
    return result;
  }
}

} // namespace tessera::train
