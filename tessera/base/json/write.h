#pragma once

// Writers of described structs, see field.h. Private to .cpp files.

#include <cmath>

#include "tessera/base/json/kinds.h"

namespace tessera::form {

template <typename T, typename... Context>
OrderedJson to_value(const T& value, const Field& field, const Context&... context);

/// Returns whether a member has its empty value: "", 0, false or no entries.
template <typename T>
bool is_unsaid(const T& value) {
  if constexpr (is_optional<T>) {
    return !value.has_value();
  } else if constexpr (std::is_same_v<T, OrderedJson> || is_list<T> || is_map<T>) {
    return value.empty();
  } else if constexpr (is_scalar<T>) {
    return value == T{};
  } else {
    return false;
  }
}

/// The visitor that makes an object of a struct; keys stand in the order of the description.
class Writer {
 public:
  static constexpr bool kReads = false;
  OrderedJson object = OrderedJson::object();

  void define(const char*) {}
  void allow_unknown() {}
  void head(const char* format, int version) {
    if (format != nullptr) {
      object["format"] = format;
    }
    object["version"] = version;
  }
  template <typename M, typename... Context>
  void operator()(const Field& field, const M& member, const Context&... context) {
    if (field.presence != Presence::kIfSaid || !is_unsaid(member)) {
      object[field.name] = to_value(member, field, context...);
    }
  }
  template <typename Broken>
  void check(Broken) {}
};

template <typename T, typename... Context>
OrderedJson write(const T& value, const Context&... context) {
  Writer writer;
  // One description serves readers and writers, which change nothing.
  describe(writer, const_cast<T&>(value), context...);
  return std::move(writer.object);
}

template <typename T, typename... Context>
OrderedJson to_value(const T& value, const Field& field, const Context&... context) {
  if constexpr (is_optional<T>) {
    return value ? to_value(*value, field, context...) : OrderedJson();
  } else if constexpr (CustomForm<T>) {
    return Custom<T>::write(value);
  } else if constexpr (std::is_floating_point_v<T>) {
    return field.unit == 1 ? value : value / field.unit;
  } else if constexpr (NamedEnum<T>) {
    return std::string(text_of(value));
  } else if constexpr (is_choice<T>) {
    return std::string(value.text());
  } else if constexpr (is_scalar<T> || std::is_same_v<T, OrderedJson>) {
    return value;
  } else if constexpr (is_list<T>) {
    OrderedJson list = OrderedJson::array();
    for (const auto& element : value) {
      list.push_back(to_value(element, field, context...));
    }
    return list;
  } else if constexpr (is_map<T>) {
    OrderedJson object = OrderedJson::object();
    for (const auto& [key, element] : value) {
      if constexpr (std::is_same_v<typename T::key_type, std::string>) {
        object[key] = to_value(element, field, context...);
      } else {
        object[std::to_string(key)] = to_value(element, field, context...);
      }
    }
    return object;
  } else if constexpr (is_by_name<T>) {
    OrderedJson object = OrderedJson::object();
    for (const auto& entry : value.entries) {
      object[entry.*value.name] = to_value(entry, field, context...);
    }
    return object;
  } else {
    return write(value, context...);
  }
}

} // namespace tessera::form
