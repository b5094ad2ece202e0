#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>

#include "tessera/base/error.h"

namespace tessera {

/// How a C++ type travels between ranks: to and from c10::IValue.
/// Arguments and results of a module call, inputs and outputs of a step all go
/// through it. Built in: tensors, numbers, bool, string, optional, vector,
/// array, pair, tuple, string-keyed map, IValue. A struct of the user's own
/// opts in by a specialisation:
///
///     template <>
///     struct tessera::Value<MyOutput> {
///       static c10::IValue pack(const MyOutput& v) {
///         return tessera::pack(std::make_tuple(v.logits, v.mask));
///       }
///       static MyOutput unpack(const c10::IValue& v) {
///         auto [logits, mask] =
///             tessera::unpack<std::tuple<at::Tensor, at::Tensor>>(v);
///         return {logits, mask};
///       }
///     };
///
/// Threads: any thread. Not collective.
template <typename T, typename Enable = void>
struct Value;

template <typename T>
c10::IValue pack(const T& value) {
  return Value<std::decay_t<T>>::pack(value);
}

template <typename T>
T unpack(const c10::IValue& value) {
  return Value<T>::unpack(value);
}

namespace detail {

inline std::vector<c10::IValue> copy_elements(const c10::IValue& value) {
  TESSERA_CHECK(value.isTuple(), "a tuple was sent, found ", value.tagKind());
  const auto& tuple = value.toTupleRef();
  return std::vector<c10::IValue>(tuple.elements().begin(), tuple.elements().end());
}

inline c10::IValue make_tuple_value(std::vector<c10::IValue> elements) {
  return c10::ivalue::Tuple::create(std::move(elements));
}

} // namespace detail

template <>
struct Value<c10::IValue> {
  static c10::IValue pack(const c10::IValue& value) {
    return value;
  }
  static c10::IValue unpack(const c10::IValue& value) {
    return value;
  }
};

/// An undefined tensor travels as None.
template <>
struct Value<at::Tensor> {
  static c10::IValue pack(const at::Tensor& value) {
    return value.defined() ? c10::IValue(value) : c10::IValue();
  }
  static at::Tensor unpack(const c10::IValue& value) {
    return value.isNone() ? at::Tensor() : value.toTensor();
  }
};

template <>
struct Value<bool> {
  static c10::IValue pack(bool value) {
    return value;
  }
  static bool unpack(const c10::IValue& value) {
    return value.toBool();
  }
};

template <typename T>
struct Value<T, std::enable_if_t<std::is_integral_v<T> && !std::is_same_v<T, bool>>> {
  static c10::IValue pack(T value) {
    return static_cast<std::int64_t>(value);
  }
  static T unpack(const c10::IValue& value) {
    return static_cast<T>(value.toInt());
  }
};

template <typename T>
struct Value<T, std::enable_if_t<std::is_enum_v<T>>> {
  static c10::IValue pack(T value) {
    return static_cast<std::int64_t>(value);
  }
  static T unpack(const c10::IValue& value) {
    return static_cast<T>(value.toInt());
  }
};

template <typename T>
struct Value<T, std::enable_if_t<std::is_floating_point_v<T>>> {
  static c10::IValue pack(T value) {
    return static_cast<double>(value);
  }
  static T unpack(const c10::IValue& value) {
    return static_cast<T>(value.toDouble());
  }
};

template <>
struct Value<std::string> {
  static c10::IValue pack(const std::string& value) {
    return value;
  }
  static std::string unpack(const c10::IValue& value) {
    return value.toStringRef();
  }
};

namespace detail {

template <typename Optional, typename T>
struct OptionalValue {
  static c10::IValue pack(const Optional& value) {
    // A one-element tuple, so that a present None differs from an absent one.
    return value ? make_tuple_value({tessera::pack<T>(*value)}) : c10::IValue();
  }
  static Optional unpack(const c10::IValue& value) {
    if (value.isNone()) {
      return {};
    }
    return Optional(tessera::unpack<T>(copy_elements(value).at(0)));
  }
};

template <typename Sequence>
c10::IValue pack_sequence(const Sequence& values) {
  std::vector<c10::IValue> elements;
  elements.reserve(values.size());
  for (const auto& value : values) {
    elements.push_back(tessera::pack(value));
  }
  return make_tuple_value(std::move(elements));
}

template <typename Tuple, std::size_t... I>
c10::IValue pack_tuple(const Tuple& values, std::index_sequence<I...>) {
  return make_tuple_value({tessera::pack(std::get<I>(values))...});
}

template <typename Tuple, std::size_t... I>
Tuple unpack_tuple(const c10::IValue& value, std::index_sequence<I...>) {
  [[maybe_unused]] const auto elements = copy_elements(value);
  TESSERA_CHECK(
      elements.size() == sizeof...(I),
      "expected ",
      sizeof...(I),
      " values, found ",
      elements.size());
  return Tuple(tessera::unpack<std::tuple_element_t<I, Tuple>>(elements[I])...);
}

} // namespace detail

template <typename T>
struct Value<std::optional<T>> : detail::OptionalValue<std::optional<T>, T> {};

// Up to torch 2.3 c10::optional is a type of its own.
template <typename T>
struct Value<
    T,
    std::enable_if_t<
        !std::is_same_v<
            c10::optional<typename T::value_type>,
            std::optional<typename T::value_type>> &&
        std::is_same_v<T, c10::optional<typename T::value_type>>>>
    : detail::OptionalValue<T, typename T::value_type> {};

template <typename T>
struct Value<std::vector<T>> {
  static c10::IValue pack(const std::vector<T>& values) {
    return detail::pack_sequence(values);
  }
  static std::vector<T> unpack(const c10::IValue& value) {
    std::vector<T> values;
    for (const auto& element : detail::copy_elements(value)) {
      values.push_back(tessera::unpack<T>(element));
    }
    return values;
  }
};

template <typename T, std::size_t N>
struct Value<std::array<T, N>> {
  static c10::IValue pack(const std::array<T, N>& values) {
    return detail::pack_sequence(values);
  }
  static std::array<T, N> unpack(const c10::IValue& value) {
    const auto elements = detail::copy_elements(value);
    TESSERA_CHECK(elements.size() == N);
    std::array<T, N> values;
    for (std::size_t i = 0; i < N; ++i) {
      values[i] = tessera::unpack<T>(elements[i]);
    }
    return values;
  }
};

template <typename A, typename B>
struct Value<std::pair<A, B>> {
  static c10::IValue pack(const std::pair<A, B>& value) {
    return detail::make_tuple_value({tessera::pack(value.first), tessera::pack(value.second)});
  }
  static std::pair<A, B> unpack(const c10::IValue& value) {
    const auto elements = detail::copy_elements(value);
    return {tessera::unpack<A>(elements.at(0)), tessera::unpack<B>(elements.at(1))};
  }
};

template <typename... Ts>
struct Value<std::tuple<Ts...>> {
  static c10::IValue pack(const std::tuple<Ts...>& values) {
    return detail::pack_tuple(values, std::index_sequence_for<Ts...>());
  }
  static std::tuple<Ts...> unpack(const c10::IValue& value) {
    return detail::unpack_tuple<std::tuple<Ts...>>(value, std::index_sequence_for<Ts...>());
  }
};

template <typename T>
struct Value<std::map<std::string, T>> {
  static c10::IValue pack(const std::map<std::string, T>& values) {
    std::vector<c10::IValue> elements;
    for (const auto& [key, value] : values) {
      elements.push_back(detail::make_tuple_value({c10::IValue(key), tessera::pack(value)}));
    }
    return detail::make_tuple_value(std::move(elements));
  }
  static std::map<std::string, T> unpack(const c10::IValue& value) {
    std::map<std::string, T> values;
    for (const auto& element : detail::copy_elements(value)) {
      const auto entry = detail::copy_elements(element);
      values.emplace(entry.at(0).toStringRef(), tessera::unpack<T>(entry.at(1)));
    }
    return values;
  }
};

/// Calls `visit(tensor)` for every tensor inside `value`, in a fixed order;
/// None, numbers and strings are skipped.
template <typename Visit>
void for_each_tensor(const c10::IValue& value, Visit&& visit) {
  if (value.isTensor()) {
    visit(value.toTensor());
  } else if (value.isTuple()) {
    for (const auto& element : value.toTupleRef().elements()) {
      for_each_tensor(element, visit);
    }
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      for_each_tensor(element, visit);
    }
  } else if (value.isGenericDict()) {
    for (const auto& entry : value.toGenericDict()) {
      for_each_tensor(entry.value(), visit);
    }
  }
}

/// The same structure with every tensor replaced by `map(tensor)`; map may
/// return an IValue of another kind.
template <typename Map>
c10::IValue map_tensors(const c10::IValue& value, Map&& map) {
  if (value.isTensor()) {
    return c10::IValue(map(value.toTensor()));
  }
  if (value.isTuple()) {
    std::vector<c10::IValue> elements;
    for (const auto& element : value.toTupleRef().elements()) {
      elements.push_back(map_tensors(element, map));
    }
    return detail::make_tuple_value(std::move(elements));
  }
  if (value.isList()) {
    std::vector<c10::IValue> elements;
    bool tensors = true;
    for (const c10::IValue& element : value.toListRef()) {
      elements.push_back(map_tensors(element, map));
      tensors = tensors && elements.back().isTensor();
    }
    // A list stays a list; it loses its type only where tensors are replaced.
    const c10::TypePtr type = value.toList().elementType();
    c10::impl::GenericList to(
        !tensors && type->kind() == c10::TypeKind::TensorType ? c10::TypePtr(c10::AnyType::get())
                                                              : type);
    for (c10::IValue& element : elements) {
      to.push_back(std::move(element));
    }
    return to;
  }
  if (value.isGenericDict()) {
    const auto from = value.toGenericDict();
    c10::impl::GenericDict to(from.keyType(), from.valueType());
    for (const auto& entry : from) {
      to.insert(entry.key(), map_tensors(entry.value(), map));
    }
    return to;
  }
  return value;
}

} // namespace tessera
