#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <set>
#include <string>

#include "tessera/base/json/parse.h"

namespace tessera::data {

/// An object of a tokenizer.json, each of whose keys must be looked at: what is not known there is
/// an error with key and value. Messages begin with `place` ("FILE: normalizer").
/// Every function throws ConfigError for a value of another type than asked for.
class Fields {
 public:
  /// Throws: ConfigError when it is no object. The object stays the caller's.
  Fields(const OrderedJson& object, std::string place);

  const std::string& place() const {
    return place_;
  }
  /// "FILE: normalizer.lowercase"
  std::string place_of(const std::string& key) const;
  bool has(const std::string& key) const;

  /// Null when it is missing.
  const OrderedJson& value(const std::string& key);
  std::string text(const std::string& key);
  std::string text(const std::string& key, const std::string& otherwise);
  bool flag(const std::string& key, bool otherwise);
  std::int64_t number(const std::string& key, std::int64_t otherwise);
  /// None when it is missing or null.
  std::optional<bool> maybe_flag(const std::string& key);
  /// The key may be missing, null, false, zero or empty; everything else is not implemented.
  void must_be_unset(const std::string& key);
  /// The value may be anything: it changes no id.
  void ignore(const std::string& key);

  /// Throws: ConfigError that says key, value and `known`, what is implemented.
  [[noreturn]] void refuse(const std::string& key, const std::string& known) const;
  /// Throws: ConfigError for a key that nobody asked for.
  void done() const;

 private:
  [[noreturn]] void wrong(const std::string& key, const std::string& expected) const;

  const OrderedJson& object_;
  std::string place_;
  std::set<std::string> seen_;
};

} // namespace tessera::data
