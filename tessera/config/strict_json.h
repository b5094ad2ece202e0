#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "tessera/base/json/parse.h"

namespace tessera::config {

/// What a JSON text written by a person is refused for.
struct JsonFaults {
  /// Why the text is no JSON, with line and column; "" when it is.
  std::string invalid;
  std::vector<RepeatedKey> repeated;
};

/// Parses any bytes without throwing; a text nested so deeply that it cannot be
/// one of our files is invalid.
JsonFaults parse_strictly(const std::string& text, nlohmann::json& into);

/// A value for people: texts are cut short, objects and lists only named.
std::string describe(const nlohmann::json& value);

/// `text` in quotes, cut short.
std::string quoted(const std::string& text);

/// `value` as an integer, also when written as 5e8; false when it is none or
/// does not fit.
bool to_integer(const nlohmann::json& value, std::int64_t& into);

/// `value` as an object of integers that fit an int; false when it is none.
bool to_integer_map(const nlohmann::json& value, std::map<std::string, int>& into);

} // namespace tessera::config
