#pragma once

#include <cstddef>
#include <cstdlib>
#include <tuple>
#include <type_traits>
#include <utility>

/// Finds the fields of a plain struct without any declaration in the struct: the number of
/// initializers that its braces take, and structured bindings of that many names.
namespace tessera::detail {

inline constexpr std::size_t kMostFields = 12;

/// Stands for a field's value in an unevaluated initialisation of `T`. The conversion is never
/// called; it has a body because clang misses one for a `T` of an unnamed namespace.
template <typename T>
struct AnyFieldOf {
  template <typename U>
  requires(!std::is_base_of_v<U, T>)
  operator U() // NOLINT(google-explicit-constructor): its purpose
      const {
    std::abort();
  }
};

/// Stands for a base class of `T`, likewise.
template <typename T>
struct AnyBaseOf {
  template <typename U>
  requires(std::is_base_of_v<U, T> && !std::is_same_v<U, T>)
  operator U() // NOLINT(google-explicit-constructor): its purpose
      const {
    std::abort();
  }
};

template <typename T, std::size_t>
using AnyFieldAt = AnyFieldOf<T>;

template <typename T, std::size_t... I>
constexpr bool takes(std::index_sequence<I...>) {
  return requires {
    T{std::declval<AnyFieldAt<T, I>>()...};
  };
}

/// Returns whether `T{a..., {b...}, c...}` is valid with as many of each as the sequences are long.
template <typename T, std::size_t... A, std::size_t... B, std::size_t... C>
constexpr bool
takes_nested(std::index_sequence<A...>, std::index_sequence<B...>, std::index_sequence<C...>) {
  return requires {
    T{std::declval<AnyFieldAt<T, A>>()...,
      {std::declval<AnyFieldAt<T, B>>()...},
      std::declval<AnyFieldAt<T, C>>()...};
  };
}

/// Returns the largest number of initializers that `T`'s braces take; at most one more than
/// kMostFields.
template <typename T, std::size_t N = kMostFields + 1>
constexpr std::size_t count_initializers() {
  if constexpr (N == 0 || takes<T>(std::make_index_sequence<N>())) {
    return N;
  } else {
    return count_initializers<T, N - 1>();
  }
}

/// Returns whether the `Size` initializers from `First` on fill one C array. Without inner braces
/// an array takes one initializer for each element, so it counts as that many fields; with inner
/// braces it takes one, and then no more than the other fields may follow.
template <typename T, std::size_t Count, std::size_t First, std::size_t Size>
constexpr bool is_array_at() {
  using Before = std::make_index_sequence<First>;
  using Elements = std::make_index_sequence<Size>;
  constexpr std::size_t kAfter = Count - First - Size;
  return takes_nested<T>(Before(), Elements(), std::make_index_sequence<kAfter>()) &&
         !takes_nested<T>(Before(), Elements(), std::make_index_sequence<kAfter + 1>());
}

template <typename T, std::size_t Count, std::size_t First = 0, std::size_t Size = 2>
constexpr bool holds_array() {
  if constexpr (First + 2 > Count) {
    return false;
  } else if constexpr (First + Size > Count) {
    return holds_array<T, Count, First + 1, 2>();
  } else if constexpr (is_array_at<T, Count, First, Size>()) {
    return true;
  } else {
    return holds_array<T, Count, First, Size + 1>();
  }
}

/// Returns whether structured bindings give one name for each initializer of `T`.
template <typename T>
constexpr bool is_plain_struct() {
  // A reference field cannot be assigned, and no received value could bind to it.
  if constexpr (!std::is_class_v<T> || !std::is_aggregate_v<T> || !std::is_move_assignable_v<T>) {
    return false;
  } else if constexpr (
      std::is_empty_v<T> || requires { std::tuple_size<T>::value; } ||
      requires { T{std::declval<AnyBaseOf<T>>()}; }) {
    return false;
  } else {
    constexpr std::size_t kCount = count_initializers<T>();
    if constexpr (kCount == 0 || kCount > kMostFields) {
      return false;
    } else {
      return !holds_array<T, kCount>();
    }
  }
}

/// A struct of 1 to kMostFields public fields, without constructors, base classes, C arrays,
/// references and constants.
template <typename T>
concept PlainStruct = is_plain_struct<T>();

template <PlainStruct T>
inline constexpr std::size_t kFieldCount = count_initializers<T>();

/// Returns references to the fields of `v`, in their order.
template <typename T>
requires PlainStruct<std::remove_const_t<T>>
constexpr auto tie_fields(T& v) {
  // The syntax fixes the number of names in a structured binding, hence one case for each number.
  constexpr std::size_t kCount = kFieldCount<std::remove_const_t<T>>;
  if constexpr (kCount == 1) {
    auto& [a] = v;
    return std::tie(a);
  } else if constexpr (kCount == 2) {
    auto& [a, b] = v;
    return std::tie(a, b);
  } else if constexpr (kCount == 3) {
    auto& [a, b, c] = v;
    return std::tie(a, b, c);
  } else if constexpr (kCount == 4) {
    auto& [a, b, c, d] = v;
    return std::tie(a, b, c, d);
  } else if constexpr (kCount == 5) {
    auto& [a, b, c, d, e] = v;
    return std::tie(a, b, c, d, e);
  } else if constexpr (kCount == 6) {
    auto& [a, b, c, d, e, f] = v;
    return std::tie(a, b, c, d, e, f);
  } else if constexpr (kCount == 7) {
    auto& [a, b, c, d, e, f, g] = v;
    return std::tie(a, b, c, d, e, f, g);
  } else if constexpr (kCount == 8) {
    auto& [a, b, c, d, e, f, g, h] = v;
    return std::tie(a, b, c, d, e, f, g, h);
  } else if constexpr (kCount == 9) {
    auto& [a, b, c, d, e, f, g, h, i] = v;
    return std::tie(a, b, c, d, e, f, g, h, i);
  } else if constexpr (kCount == 10) {
    auto& [a, b, c, d, e, f, g, h, i, j] = v;
    return std::tie(a, b, c, d, e, f, g, h, i, j);
  } else if constexpr (kCount == 11) {
    auto& [a, b, c, d, e, f, g, h, i, j, k] = v;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k);
  } else {
    static_assert(kCount == kMostFields);
    auto& [a, b, c, d, e, f, g, h, i, j, k, l] = v;
    return std::tie(a, b, c, d, e, f, g, h, i, j, k, l);
  }
}

template <typename... Ts>
std::tuple<Ts...> untied(std::tuple<Ts&...>);

/// The types of the fields of `T`, as a std::tuple.
template <PlainStruct T>
using FieldTypes = decltype(untied(tie_fields(std::declval<T&>())));

} // namespace tessera::detail
