#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>

#include "tessera/base/error.h"
#include "tessera/tensor/aggregate.h"

/// Defines `Value`, and the conversions of types that hold no other values, except for plain
/// structs. Include value.h instead.
namespace tessera {

template <typename T, typename Enable = void>
struct Value;

namespace detail {

template <typename T>
concept Packable = requires(const T& value) {
  { Value<T>::pack(value) } -> std::same_as<c10::IValue>;
};

template <typename T>
concept Unpackable = requires(const c10::IValue& value) {
  { Value<T>::unpack(value) } -> std::same_as<T>;
};

template <typename T>
constexpr bool has_packable_fields() {
  if constexpr (PlainStruct<T>) {
    return []<typename... Ts>(std::tuple<Ts...>*) {
      return (Packable<Ts> && ...);
    }(static_cast<FieldTypes<T>*>(nullptr));
  } else {
    return false;
  }
}

/// A type without data: the tags of torch::enumtype, std::monostate, an empty struct.
template <typename T>
concept Stateless = std::is_empty_v<T> && std::default_initializable<T>;

/// The type to which a call's packed argument of type `T` is unpacked before it is passed on. This
/// is `T` itself, or, for a `T` that refers to data of the caller, a type that owns a copy and
/// converts to `T`.
template <typename T>
struct StoredAs {
  using Type = T;
};

template <typename T>
using Stored = typename StoredAs<T>::Type;

template <typename...>
inline constexpr bool kNever = false;

} // namespace detail

/// Converts a value to and from c10::IValue.
/// Throws: CommError (from `unpack`, here and below) when the received value is of another kind.
template <typename T>
c10::IValue pack(const T& value) {
  if constexpr (detail::Packable<std::decay_t<T>>) {
    return Value<std::decay_t<T>>::pack(value);
  } else {
    static_assert(
        detail::kNever<T>,
        "tessera::Value does not know how this type travels between ranks: make it a struct of at "
        "most 12 public fields of known types (no constructors, base classes, references or C "
        "arrays), or write a specialisation of tessera::Value with pack and unpack for it, see "
        "tessera/tensor/value.h");
    return {};
  }
}

template <typename T>
T unpack(const c10::IValue& value) {
  if constexpr (detail::Unpackable<T>) {
    return Value<T>::unpack(value);
  } else {
    static_assert(
        !detail::Packable<T>,
        "a value of this type refers to data of somebody else, which does not travel with it: "
        "return what owns the data instead (a std::vector, a std::string), or write unpack in "
        "tessera::Value, see tessera/tensor/value.h");
    throw InternalError("unreachable: pack has refused this type");
  }
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

template <typename Tuple, std::size_t... I>
c10::IValue pack_tuple(const Tuple& values, std::index_sequence<I...>) {
  return make_tuple_value({tessera::pack(std::get<I>(values))...});
}

/// Makes `Result` in braces from the elements; `Types`, a std::tuple, lists their types.
template <typename Result, typename Types, std::size_t... I>
Result unpack_elements(const c10::IValue& value, std::index_sequence<I...>) {
  [[maybe_unused]] const auto elements = copy_elements(value);
  TESSERA_CHECK(
      elements.size() == sizeof...(I),
      "expected ",
      sizeof...(I),
      " values, found ",
      elements.size());
  return Result{tessera::unpack<std::tuple_element_t<I, Types>>(elements[I])...};
}

/// Returns the integer as a `T`. Throws: CommError for another kind of value, or where a `T` does
/// not hold it; 64 bits without a sign travel as those of a signed number.
template <typename T>
T unpack_integer(const c10::IValue& value) {
  if (!value.isInt()) {
    throw CommError(str("found ", value.tagKind(), " where an integer was asked for"));
  }
  const std::int64_t found = value.toInt();
  const auto result = static_cast<T>(found);
  if (static_cast<std::int64_t>(result) != found) {
    throw CommError(
        str("found the integer ",
            found,
            ", which the ",
            8 * sizeof(T),
            std::is_signed_v<T> ? " bits" : " bits without a sign",
            " that were asked for do not hold"));
  }
  return result;
}

/// Returns the number as a `T`, rounded. Throws: CommError for another kind of value, or where it
/// is too large for a `T`.
template <typename T>
T unpack_real(const c10::IValue& value) {
  if (!value.isDouble()) {
    throw CommError(str("found ", value.tagKind(), " where a floating-point number was asked for"));
  }
  const double found = value.toDouble();
  const auto result = static_cast<T>(found);
  if (std::isfinite(found) && !std::isfinite(result)) {
    throw CommError(str(
        "found ", found, ", which the ", 8 * sizeof(T), " bits that were asked for do not hold"));
  }
  return result;
}

} // namespace detail

/// Handles types without a specialisation: plain structs field by field, and types without data.
template <typename T, typename Enable>
struct Value {
  static c10::IValue pack(const T& value) requires(detail::has_packable_fields<T>()) {
    return detail::pack_tuple(
        detail::tie_fields(value), std::make_index_sequence<detail::kFieldCount<T>>());
  }
  static T unpack(const c10::IValue& value) requires(detail::has_packable_fields<T>()) {
    return detail::unpack_elements<T, detail::FieldTypes<T>>(
        value, std::make_index_sequence<detail::kFieldCount<T>>());
  }

  static c10::IValue pack(const T&) requires detail::Stateless<T> {
    return detail::make_tuple_value({});
  }
  static T unpack(const c10::IValue&) requires detail::Stateless<T> {
    return T();
  }
};

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
    return detail::unpack_integer<T>(value);
  }
};

template <typename T>
struct Value<T, std::enable_if_t<std::is_enum_v<T>>> {
  static c10::IValue pack(T value) {
    return static_cast<std::int64_t>(value);
  }
  static T unpack(const c10::IValue& value) {
    return static_cast<T>(detail::unpack_integer<std::underlying_type_t<T>>(value));
  }
};

template <typename T>
struct Value<T, std::enable_if_t<std::is_floating_point_v<T>>> {
  static c10::IValue pack(T value) {
    return static_cast<double>(value);
  }
  static T unpack(const c10::IValue& value) {
    return detail::unpack_real<T>(value);
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

} // namespace tessera
