#pragma once

#include <array>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

#include <ATen/ATen.h>

#include "tessera/tensor/torch_compat.h"

// How a kernel of libtorch that takes f32 is made to take f16; private to this folder.
namespace tessera::half {

inline bool is_half(const at::Tensor& tensor) {
  return tensor.defined() && tensor.scalar_type() == at::kHalf;
}

/// One argument of an operator, and how its f32 kernel takes it. This one is for numbers and sizes.
template <typename A>
struct Argument {
  A given;

  A wide() {
    return static_cast<A>(given);
  }
  void put_back() {}
};
template <typename A>
bool holds_half(const A& /*argument*/) {
  return false;
}
/// Whether f16 kernels of libtorch would refuse the argument beside f16 ones.
template <typename A>
bool is_of_another_type(const A& /*argument*/) {
  return false;
}

template <>
struct Argument<const at::Tensor&> {
  const at::Tensor& given;
  at::Tensor made = {};

  const at::Tensor& wide() {
    if (!is_half(given)) {
      return given;
    }
    made = given.to(at::kFloat);
    return made;
  }
  void put_back() {}
};
inline bool holds_half(const at::Tensor& argument) {
  return is_half(argument);
}
inline bool is_of_another_type(const at::Tensor& argument) {
  return argument.defined() && argument.is_floating_point() && !is_half(argument) &&
         argument.dim() > 0;
}

template <>
struct Argument<const TorchOptional<at::Tensor>&> {
  const TorchOptional<at::Tensor>& given;
  TorchOptional<at::Tensor> made = {};

  const TorchOptional<at::Tensor>& wide() {
    if (!given.has_value() || !is_half(*given)) {
      return given;
    }
    made = given->to(at::kFloat);
    return made;
  }
  void put_back() {}
};
inline bool holds_half(const TorchOptional<at::Tensor>& argument) {
  return argument.has_value() && is_half(*argument);
}
inline bool is_of_another_type(const TorchOptional<at::Tensor>& argument) {
  return argument.has_value() && is_of_another_type(*argument);
}

/// What the operator writes.
template <>
struct Argument<at::Tensor&> {
  at::Tensor& given;
  at::Tensor made = {};

  at::Tensor& wide() {
    if (!is_half(given)) {
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
  at::ScalarType given;

  at::ScalarType wide() {
    return given == at::kHalf ? at::kFloat : given;
  }
  void put_back() {}
};
template <>
struct Argument<TorchOptional<at::ScalarType>> {
  TorchOptional<at::ScalarType> given;

  TorchOptional<at::ScalarType> wide() {
    return given.has_value() && *given == at::kHalf ? at::kFloat : given;
  }
  void put_back() {}
};

/// Whether the argument says that results are of another type than f16.
template <typename A>
bool asks_for_another_type(const A& /*argument*/) {
  return false;
}
inline bool asks_for_another_type(const at::ScalarType& argument) {
  return argument != at::kHalf;
}
inline bool asks_for_another_type(const TorchOptional<at::ScalarType>& argument) {
  return argument.has_value() && *argument != at::kHalf;
}

/// Which results are rounded, and which mixtures of types are taken.
enum class Kind {
  kPlain, // all results; f16 beside wider types is left to libtorch, which refuses it
  kBackward, // all results; statistics of the forward come as f32
  kStatistics // the first result: statistics for the backward stay f32, and may come as f32
};

inline at::Tensor narrowed(const at::Tensor& tensor) {
  return tensor.defined() && tensor.scalar_type() == at::kFloat ? tensor.to(at::kHalf) : tensor;
}

template <Kind kKind, typename... Ts, std::size_t... I>
std::tuple<Ts...> narrowed_tuple(const std::tuple<Ts...>& results, std::index_sequence<I...>) {
  return {
      (I == 0 || kKind != Kind::kStatistics ? narrowed(std::get<I>(results))
                                            : std::get<I>(results))...};
}

template <Kind kKind>
at::Tensor narrowed_result(const at::Tensor& result) {
  return narrowed(result);
}
template <Kind kKind, typename... Ts>
std::tuple<Ts...> narrowed_result(const std::tuple<Ts...>& results) {
  return narrowed_tuple<kKind>(results, std::index_sequence_for<Ts...>());
}

inline at::Tensor* written(at::Tensor& argument) {
  return &argument;
}
template <typename A>
at::Tensor* written(const A& /*argument*/) {
  return nullptr;
}

/// The kernel `kOriginal`, with f16 tensors taken as f32 ones.
template <auto kOriginal, Kind kKind, typename Function = decltype(kOriginal)>
struct Widened;

template <auto kOriginal, Kind kKind, typename R, typename... A>
struct Widened<kOriginal, kKind, R (*)(A...)> {
  static R call(A... args) {
    const bool half = (holds_half(args) || ...);
    const bool mixed = kKind == Kind::kPlain && (is_of_another_type(args) || ...);
    if (!half || mixed) {
      return kOriginal(std::forward<A>(args)...);
    }
    std::tuple<Argument<A>...> arguments{Argument<A>{std::forward<A>(args)}...};
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
      const bool stays_wide = (asks_for_another_type(args) || ...);
      return stays_wide ? run() : narrowed_result<kKind>(run());
    }
  }
};

} // namespace tessera::half
