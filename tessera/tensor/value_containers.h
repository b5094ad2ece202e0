#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <variant>
#include <vector>

#include "tessera/tensor/value_core.h"

/// Conversions of types that hold other values. Include value.h instead.
namespace tessera {

namespace detail {

template <typename Optional, typename T>
struct OptionalValue {
  static c10::IValue pack(const Optional& value) {
    // A one-element tuple tells a present None from an absent value.
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
  // The type is not `auto`, because the elements of a vector of bool are objects of another type.
  for (const typename Sequence::value_type& value : values) {
    elements.push_back(tessera::pack(value));
  }
  return make_tuple_value(std::move(elements));
}

/// Returns the entries of an unordered container, sorted by key. Equal containers must give equal
/// values whatever their history, because replayed steps are compared with recorded ones.
template <typename Container, typename KeyOf>
auto sorted_entries(const Container& values, const KeyOf& key_of) {
  std::vector<const typename Container::value_type*> entries;
  entries.reserve(values.size());
  for (const auto& value : values) {
    entries.push_back(&value);
  }
  std::sort(entries.begin(), entries.end(), [&](const auto* a, const auto* b) {
    return key_of(*a) < key_of(*b);
  });
  return entries;
}

template <typename Map>
struct MapValue {
  static c10::IValue pack(const Map& values) {
    std::vector<c10::IValue> elements;
    elements.reserve(values.size());
    const auto key_of = [](const auto& entry) -> const auto& {
      return entry.first;
    };
    for (const auto* entry : sorted_entries(values, key_of)) {
      elements.push_back(
          make_tuple_value({tessera::pack(entry->first), tessera::pack(entry->second)}));
    }
    return make_tuple_value(std::move(elements));
  }
  static Map unpack(const c10::IValue& value) {
    Map values;
    for (const auto& element : copy_elements(value)) {
      const auto entry = copy_elements(element);
      values.emplace(
          tessera::unpack<typename Map::key_type>(entry.at(0)),
          tessera::unpack<typename Map::mapped_type>(entry.at(1)));
    }
    return values;
  }
};

template <typename Set>
struct SetValue {
  static c10::IValue pack(const Set& values) {
    std::vector<c10::IValue> elements;
    elements.reserve(values.size());
    const auto key_of = [](const auto& entry) -> const auto& {
      return entry;
    };
    for (const auto* entry : sorted_entries(values, key_of)) {
      elements.push_back(tessera::pack(*entry));
    }
    return make_tuple_value(std::move(elements));
  }
  static Set unpack(const c10::IValue& value) {
    Set values;
    for (const auto& element : copy_elements(value)) {
      values.insert(tessera::unpack<typename Set::key_type>(element));
    }
    return values;
  }
};

/// Packs the index of the alternative and its value, for std::variant or libtorch's own.
template <typename Variant, typename... Ts>
struct VariantValue {
  static c10::IValue pack(const Variant& value) {
    return pack(value, std::index_sequence_for<Ts...>());
  }
  static Variant unpack(const c10::IValue& value) {
    return unpack(value, std::index_sequence_for<Ts...>());
  }

 private:
  template <std::size_t... I>
  static c10::IValue pack(const Variant& value, std::index_sequence<I...>) {
    using std::get; // libtorch's variant has its own, found beside its type
    c10::IValue held;
    ((I == static_cast<std::size_t>(value.index()) ? void(held = tessera::pack(get<I>(value)))
                                                   : void()),
     ...);
    return make_tuple_value({static_cast<std::int64_t>(value.index()), held});
  }
  template <std::size_t... I>
  static Variant unpack(const c10::IValue& value, std::index_sequence<I...>) {
    const auto elements = copy_elements(value);
    const std::int64_t index = elements.at(0).toInt();
    TESSERA_CHECK(
        index >= 0 && index < static_cast<std::int64_t>(sizeof...(Ts)),
        "alternative ",
        index,
        " of a variant of ",
        sizeof...(Ts));
    Variant result;
    ((I == static_cast<std::size_t>(index)
          ? void(result.template emplace<I>(tessera::unpack<Ts>(elements.at(1))))
          : void()),
     ...);
    return result;
  }
};

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
    return detail::unpack_elements<std::pair<A, B>, std::tuple<A, B>>(
        value, std::index_sequence_for<A, B>());
  }
};

template <typename... Ts>
struct Value<std::tuple<Ts...>> {
  static c10::IValue pack(const std::tuple<Ts...>& values) {
    return detail::pack_tuple(values, std::index_sequence_for<Ts...>());
  }
  static std::tuple<Ts...> unpack(const c10::IValue& value) {
    return detail::unpack_elements<std::tuple<Ts...>, std::tuple<Ts...>>(
        value, std::index_sequence_for<Ts...>());
  }
};

template <typename K, typename T, typename... Rest>
struct Value<std::map<K, T, Rest...>> : detail::MapValue<std::map<K, T, Rest...>> {};

template <typename K, typename T, typename... Rest>
struct Value<std::unordered_map<K, T, Rest...>>
    : detail::MapValue<std::unordered_map<K, T, Rest...>> {};

template <typename K, typename... Rest>
struct Value<std::set<K, Rest...>> : detail::SetValue<std::set<K, Rest...>> {};

template <typename K, typename... Rest>
struct Value<std::unordered_set<K, Rest...>> : detail::SetValue<std::unordered_set<K, Rest...>> {};

template <typename... Ts>
struct Value<std::variant<Ts...>> : detail::VariantValue<std::variant<Ts...>, Ts...> {};

} // namespace tessera
