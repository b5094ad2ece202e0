#pragma once

// Private to the planner: what the readers of both described files share.

#include <string>

#include "tessera/base/error.h"
#include "tessera/base/json/parse.h"
#include "tessera/base/json_fields.h"
#include "tessera/base/text.h"

namespace tessera::planner {

inline OrderedJson parse_described(const std::string& text) {
  try {
    return parse_json(text, "");
  } catch (const JsonError& error) {
    throw ConfigError(error.what());
  }
}

inline const OrderedJson& list_of(const JsonFields& fields, const char* key) {
  const OrderedJson& value = fields.at(key);
  if (!value.is_array()) {
    fields.fail(str("'", key, "' must be a list, found ", one_line(value)));
  }
  return value;
}

inline const OrderedJson& object_of(const JsonFields& fields, const char* key) {
  const OrderedJson& value = fields.at(key);
  if (!value.is_object()) {
    fields.fail(str("'", key, "' must be an object, found ", one_line(value)));
  }
  return value;
}

/// `read` of the text; every error becomes a ConfigError that begins with
/// `origin`.
template <typename Read>
auto read_named(const std::string& text, const std::string& origin, Read read) {
  try {
    return read(parse_described(text));
  } catch (const Error& error) {
    throw ConfigError(str(origin, ": ", error.what()));
  }
}

} // namespace tessera::planner
