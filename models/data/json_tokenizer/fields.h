#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>

#include "tessera/base/json/parse.h"

namespace tessera::data {

/// Reads an object of a tokenizer.json and checks that each of its keys was read: a key that nobody
/// knows is an error with key and value. Messages begin with `place` ("FILE: normalizer").
/// Every function throws ConfigError for a value of another type than requested.
class Fields {
 public:
  /// Keeps a reference to the object. Throws: ConfigError when it is no object.
  Fields(const OrderedJson& object, std::string place);

  const std::string& place() const {
    return place_;
  }
  /// Returns how messages call a key: "FILE: normalizer.lowercase".
  std::string place_of(const std::string& key) const;
  bool has(const std::string& key) const;

  /// Returns the value of a key, null when it is missing.
  const OrderedJson& value(const std::string& key);
  std::string text(const std::string& key);
  std::string text(const std::string& key, const std::string& otherwise);
  bool flag(const std::string& key, bool otherwise);
  std::int64_t number(const std::string& key, std::int64_t otherwise);
  /// Returns nothing when the key is missing or null.
  std::optional<bool> maybe_flag(const std::string& key);
  /// Accepts a key that is missing, null, false, zero or empty; other values are not implemented.
  void must_be_unset(const std::string& key);
  /// Accepts any value of a key that changes no id.
  void ignore(const std::string& key);

  /// Throws: ConfigError with key, value and `known`, which lists what is implemented.
  [[noreturn]] void refuse(const std::string& key, const std::string& known) const;
  /// Checks that every key was read. Throws: ConfigError for the first one that was not.
  void done() const;

 private:
  [[noreturn]] void wrong(const std::string& key, const std::string& expected) const;

  const OrderedJson& object_;
  std::string place_;
  std::set<std::string> seen_;
};

} // namespace tessera::data
