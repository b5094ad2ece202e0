#pragma once

#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "tessera/base/choice.h"
#include "tessera/base/json/field.h"

namespace tessera::form {

/// A type with a form of its own: specialise with
///   static bool read(const OrderedJson& found, T& into);  // false: it is none
///   static OrderedJson write(const T& value);
///   static std::string allowed();
///   static OrderedJson schema();
template <typename T>
struct Custom {};

/// A list whose entries stand in an object under their names.
template <typename T>
struct ByName {
  using Entry = T;

  std::vector<T>& entries;
  std::string T::*name;
};

template <typename T>
concept CustomForm = requires(const T& value) {
  Custom<T>::write(value);
};

template <typename T>
inline constexpr bool is_optional = false;
template <typename T>
inline constexpr bool is_optional<std::optional<T>> = true;

template <typename T>
inline constexpr bool is_list = false;
template <typename T>
inline constexpr bool is_list<std::vector<T>> = true;

template <typename T>
inline constexpr bool is_map = false;
template <typename K, typename T>
inline constexpr bool is_map<std::map<K, T>> = true;

template <typename T>
inline constexpr bool is_by_name = false;
template <typename T>
inline constexpr bool is_by_name<ByName<T>> = true;

template <typename T>
inline constexpr bool is_choice = false;
template <typename E>
inline constexpr bool is_choice<Choice<E>> = true;

/// A number, a truth value or a text.
template <typename T>
inline constexpr bool is_scalar =
    std::is_arithmetic_v<T> || std::is_same_v<T, std::string> || NamedEnum<T> || is_choice<T>;

template <typename T>
constexpr Kind kind_of() {
  if constexpr (std::is_same_v<T, bool>) {
    return Kind::kBool;
  } else if constexpr (std::is_integral_v<T>) {
    return Kind::kInteger;
  } else if constexpr (std::is_floating_point_v<T>) {
    return Kind::kNumber;
  } else if constexpr (is_scalar<T>) {
    return Kind::kText;
  } else if constexpr (is_list<T>) {
    return Kind::kList;
  } else if constexpr (std::is_same_v<T, OrderedJson>) {
    return Kind::kAny;
  } else {
    return Kind::kObject;
  }
}

/// Returns the texts of a closed set, or those that the field lists.
template <typename T>
std::vector<std::string> choices_of(const Field& field) {
  if constexpr (NamedEnum<T>) {
    return all_choices<T>();
  } else if constexpr (is_choice<T>) {
    return all_choices<std::decay_t<decltype(std::declval<T>().value())>>();
  } else {
    return field.choices;
  }
}

template <typename T>
std::string allowed(Field field) {
  if constexpr (CustomForm<T>) {
    return Custom<T>::allowed();
  } else {
    field.choices = choices_of<T>(field);
    return allowed(field, kind_of<T>());
  }
}

/// A visitor that does nothing; base of those that look at some parts of a description.
struct Visitor {
  static constexpr bool kReads = false;
  void define(const char*) {}
  void allow_unknown() {}
  void head(const char*, int) {}
  template <typename Check>
  void check(Check) {}
};

/// Gathers the keys that a struct's object may have.
struct Names : Visitor {
  std::vector<std::string> names;

  void head(const char* format, int) {
    if (format != nullptr) {
      names.emplace_back("format");
    }
    names.emplace_back("version");
  }
  template <typename M, typename... Context>
  void operator()(const Field& field, const M&, const Context&...) {
    names.emplace_back(field.name);
  }
};

template <typename T>
const std::vector<std::string>& field_names() {
  static const std::vector<std::string> kNames = [] {
    Names visitor;
    T value{};
    describe(visitor, value);
    return visitor.names;
  }();
  return kNames;
}

} // namespace tessera::form
