#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/tensor/torch_compat.h"

// How a kernel of libtorch that takes f32 is made to take a type of 16 bits; private to this
// folder.
namespace tessera::half {

inline bool is_of(at::ScalarType type, const at::Tensor& tensor) {
  return tensor.defined() && tensor.scalar_type() == type;
}

/// One argument of an operator, and how its f32 kernel takes it where it is `narrow`. This one is
/// for numbers and sizes.
template <typename A>
struct Argument {
  at::ScalarType narrow;
  A given;

  A wide() {
    return static_cast<A>(given);
  }
  void put_back() {}
};
template <typename A>
bool holds(at::ScalarType /*type*/, const A& /*argument*/) {
  return false;
}
/// Whether kernels of libtorch for `type` would refuse the argument beside those of the type.
template <typename A>
bool is_of_another_type(at::ScalarType /*type*/, const A& /*argument*/) {
  return false;
}

template <>
struct Argument<const at::Tensor&> {
  at::ScalarType narrow;
  const at::Tensor& given;
  at::Tensor made = {};

  const at::Tensor& wide() {
    if (!is_of(narrow, given)) {
      return given;
    }
    made = given.to(at::kFloat);
    return made;
  }
  void put_back() {}
};
inline bool holds(at::ScalarType type, const at::Tensor& argument) {
  return is_of(type, argument);
}
inline bool is_of_another_type(at::ScalarType type, const at::Tensor& argument) {
  return argument.defined() && argument.is_floating_point() && !is_of(type, argument) &&
         argument.dim() > 0;
}

template <>
struct Argument<const TorchOptional<at::Tensor>&> {
  at::ScalarType narrow;
  const TorchOptional<at::Tensor>& given;
  TorchOptional<at::Tensor> made = {};

  const TorchOptional<at::Tensor>& wide() {
    if (!given.has_value() || !is_of(narrow, *given)) {
      return given;
    }
    made = given->to(at::kFloat);
    return made;
  }
  void put_back() {}
};
inline bool holds(at::ScalarType type, const TorchOptional<at::Tensor>& argument) {
  return argument.has_value() && is_of(type, *argument);
}
inline bool is_of_another_type(at::ScalarType type, const TorchOptional<at::Tensor>& argument) {
  return argument.has_value() && is_of_another_type(type, *argument);
}

/// What the operator writes.
template <>
struct Argument<at::Tensor&> {
  at::ScalarType narrow;
  at::Tensor& given;
  at::Tensor made = {};

  at::Tensor& wide() {
    if (!is_of(narrow, given)) {
      return given;
    }
    made = given.to(at::kFloat);
    return made;
  }
  void put_back() {
    if (made.defined()) {
      if (given.sizes() != made.sizes()) {
        given.resize_(made.sizes());
      }
      given.copy_(made);
    }
  }
};

/// The type that a result is to have.
template <>
struct Argument<at::ScalarType> {
  at::ScalarType narrow;
  at::ScalarType given;

  at::ScalarType wide() {
    return given == narrow ? at::kFloat : given;
  }
  void put_back() {}
};
template <>
struct Argument<TorchOptional<at::ScalarType>> {
  at::ScalarType narrow;
  TorchOptional<at::ScalarType> given;

  TorchOptional<at::ScalarType> wide() {
    return given.has_value() && *given == narrow ? at::kFloat : given;
  }
  void put_back() {}
};

/// Whether the argument says that results are of another type than `type`.
template <typename A>
bool asks_for_another_type(at::ScalarType /*type*/, const A& /*argument*/) {
  return false;
}
inline bool asks_for_another_type(at::ScalarType type, const at::ScalarType& argument) {
  return argument != type;
}
inline bool asks_for_another_type(
    at::ScalarType type,
    const TorchOptional<at::ScalarType>& argument) {
  return argument.has_value() && *argument != type;
}

/// Which results are rounded, and which mixtures of types are taken.
enum class Kind {
  kPlain, // all results; 16 bits beside wider types are left to libtorch, which refuses them
  kProduct, // the same, and the only kind that takes bf16
  kBackward, // all results; statistics of the forward come as f32
  kStatistics // the first result: statistics for the backward stay f32, and may come as f32
};

inline at::Tensor narrowed(at::ScalarType type, const at::Tensor& tensor) {
  return tensor.defined() && tensor.scalar_type() == at::kFloat ? tensor.to(type) : tensor;
}

template <Kind kKind, typename... Ts, std::size_t... I>
std::tuple<Ts...>
narrowed_tuple(at::ScalarType type, const std::tuple<Ts...>& results, std::index_sequence<I...>) {
  return {
      (I == 0 || kKind != Kind::kStatistics ? narrowed(type, std::get<I>(results))
                                            : std::get<I>(results))...};
}

template <Kind kKind>
at::Tensor narrowed_result(at::ScalarType type, const at::Tensor& result) {
  return narrowed(type, result);
}
template <Kind kKind, typename... Ts>
std::tuple<Ts...> narrowed_result(at::ScalarType type, const std::tuple<Ts...>& results) {
  return narrowed_tuple<kKind>(type, results, std::index_sequence_for<Ts...>());
}

inline at::Tensor* written(at::Tensor& argument) {
  return &argument;
}
template <typename A>
at::Tensor* written(const A& /*argument*/) {
  return nullptr;
}

/// The kernel `kOriginal`, with tensors of the types of `widened_types()` taken as f32 ones.
template <auto kOriginal, Kind kKind, typename Function = decltype(kOriginal)>
struct Widened;

/// The types that are computed in f32, each from when something has asked for it.
struct WidenedTypes {
  std::atomic<bool> half = false;
  std::atomic<bool> bfloat16 = false; // in those of Kind::kProduct
};
WidenedTypes& widened_types();

template <auto kOriginal, Kind kKind, typename R, typename... A>
struct Widened<kOriginal, kKind, R (*)(A...)> {
  static R call(A... args) {
    const WidenedTypes& types = widened_types();
    const bool bfloat16 =
        kKind == Kind::kProduct && types.bfloat16 && (holds(at::kBFloat16, args) || ...);
    const at::ScalarType type = bfloat16 ? at::kBFloat16 : at::kHalf;
    const bool narrow = bfloat16 || (types.half && (holds(at::kHalf, args) || ...));
    constexpr bool kRefusesMixtures = kKind == Kind::kPlain || kKind == Kind::kProduct;
    const bool mixed = kRefusesMixtures && (is_of_another_type(type, args) || ...);
    if (!narrow || mixed) {
      return kOriginal(std::forward<A>(args)...);
    }
    std::tuple<Argument<A>...> arguments{Argument<A>{type, std::forward<A>(args)}...};
    const auto run = [&]() -> R {
      return std::apply([](auto&... a) -> R { return kOriginal(a.wide()...); }, arguments);
    };
    if constexpr (std::is_same_v<R, at::Tensor&>) {
      run();
      std::apply([](auto&... a) { (a.put_back(), ...); }, arguments);
      at::Tensor* result = nullptr;
      ((result = result != nullptr ? result : written(args)), ...);
      return *result;
    } else {
      const bool stays_wide = (asks_for_another_type(type, args) || ...);
      return stays_wide ? run() : narrowed_result<kKind>(type, run());
    }
  }
};

} // namespace tessera::half
