#pragma once

// For .cpp files that read JSON; not installed, so that no public header needs
// nlohmann-json.

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/json/parse.h"

namespace tessera {

/// Reads the fields of one JSON object. Every message begins with `place` and
/// names the field, what was found and what is allowed.
class JsonFields {
 public:
  JsonFields(const OrderedJson& object, std::string place)
      : object_(object), place_(std::move(place)) {
    if (!object.is_object()) {
      fail(str("expected an object, found ", one_line(object)));
    }
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw Error(str(place_, ": ", what));
  }

  bool has(const char* key) const {
    return object_.contains(key);
  }

  /// Throws when the object has a field that is not listed.
  void allow_only(std::initializer_list<const char*> known) const {
    for (const auto& item : object_.items()) {
      bool found = false;
      for (const char* field : known) {
        found = found || item.key() == field;
      }
      if (!found) {
        fail(str("unknown field '", item.key(), "'"));
      }
    }
  }

  const OrderedJson& at(const char* key) const {
    const auto found = object_.find(key);
    if (found == object_.end()) {
      fail(str("field '", key, "' is missing"));
    }
    return *found;
  }

  std::string text(const char* key) const {
    const OrderedJson& value = at(key);
    if (!value.is_string()) {
      refuse(key, "a string", value);
    }
    return value.get<std::string>();
  }

  std::int64_t integer(
      const char* key,
      std::int64_t least = 0,
      std::int64_t most = std::numeric_limits<std::int64_t>::max()) const {
    return integer_of(key, at(key), least, most);
  }

  int small_integer(const char* key, int least = 0, int most = std::numeric_limits<int>::max())
      const {
    return static_cast<int>(integer(key, least, most));
  }

  double number(const char* key) const {
    const OrderedJson& value = at(key);
    if (!value.is_number()) {
      refuse(key, "a number", value);
    }
    return value.get<double>();
  }

  /// null stands for what JSON cannot write: not a number.
  double number_or_null(const char* key) const {
    return at(key).is_null() ? std::numeric_limits<double>::quiet_NaN() : number(key);
  }

  std::vector<std::int64_t> integers(const char* key, std::int64_t least = 0) const {
    const OrderedJson& value = at(key);
    if (!value.is_array()) {
      refuse(key, "a list of integers", value);
    }
    std::vector<std::int64_t> result;
    for (const OrderedJson& element : value) {
      result.push_back(integer_of(key, element, least, std::numeric_limits<std::int64_t>::max()));
    }
    return result;
  }

  std::vector<std::string> texts(const char* key) const {
    const OrderedJson& value = at(key);
    if (!value.is_array()) {
      refuse(key, "a list of strings", value);
    }
    std::vector<std::string> result;
    for (const OrderedJson& element : value) {
      if (!element.is_string()) {
        refuse(key, "a list of strings", value);
      }
      result.push_back(element.get<std::string>());
    }
    return result;
  }

 private:
  [[noreturn]] void refuse(const char* key, const std::string& wanted, const OrderedJson& found)
      const {
    fail(str("'", key, "' must be ", wanted, ", found ", one_line(found)));
  }

  std::int64_t integer_of(
      const char* key,
      const OrderedJson& value,
      std::int64_t least,
      std::int64_t most) const {
    constexpr std::uint64_t kMost = std::numeric_limits<std::int64_t>::max();
    const bool fits = value.is_number_integer() &&
                      !(value.is_number_unsigned() && value.get<std::uint64_t>() > kMost);
    if (!fits || value.get<std::int64_t>() < least || value.get<std::int64_t>() > most) {
      refuse(key, str("an integer from ", least, " to ", most), value);
    }
    return value.get<std::int64_t>();
  }

  const OrderedJson& object_;
  std::string place_;
};

} // namespace tessera
