#include "tessera/checkpoint/json.h"

#include <limits>
#include <utility>

#include <nlohmann/json.hpp>

#include "tessera/base/error.h"
#include "tessera/base/json/parse.h"
#include "tessera/checkpoint/checksum.h"

namespace tessera::checkpoint {

using nlohmann::json;

namespace {
const char* const kChecksumKey = "checksum";
} // namespace

json parse_json(const std::string& text, const std::string& what) {
  try {
    return tessera::parse_json<json>(text, what);
  } catch (const JsonError& error) {
    throw CheckpointError(error.what());
  }
}

std::string brief(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > 80) {
    text.resize(77);
    text += "...";
  }
  return text;
}

JsonObject::JsonObject(const json& value, std::string what)
    : value_(value), what_(std::move(what)) {
  if (!value.is_object()) {
    throw CheckpointError(str(what_, ": expected an object, found ", brief(value)));
  }
}

std::string JsonObject::what(const char* key) const {
  return str(what_, ": \"", key, "\"");
}

const json& JsonObject::at(const char* key) const {
  const auto found = value_.find(key);
  if (found == value_.end()) {
    throw CheckpointError(what(key) + " is missing");
  }
  return *found;
}

std::string JsonObject::string(const char* key) const {
  const json& value = at(key);
  if (!value.is_string()) {
    throw CheckpointError(str(what(key), " must be a string, found ", brief(value)));
  }
  return value.get<std::string>();
}

std::uint64_t JsonObject::hash(const char* key) const {
  return from_hex(string(key), what(key));
}

const json& JsonObject::list(const char* key) const {
  const json& value = at(key);
  if (!value.is_array()) {
    throw CheckpointError(str(what(key), " must be a list, found ", brief(value)));
  }
  return value;
}

std::uint64_t unsigned_of(const json& value, const std::string& what) {
  constexpr auto kMax = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > kMax) {
    throw CheckpointError(
        str(what, ": expected a whole number from 0 to 2^63 - 1, found ", brief(value)));
  }
  return value.get<std::uint64_t>();
}

std::string seal(json object) {
  object.erase(kChecksumKey);
  try {
    object[kChecksumKey] = to_hex(checksum_of(object.dump()));
    return object.dump(1) + "\n";
  } catch (const json::exception& error) {
    throw CheckpointError(str("a text of the checkpoint is not UTF-8: ", error.what()));
  }
}

json unseal(const std::string& text, const std::string& what) {
  json object = parse_json(text, what);
  const std::uint64_t expected = JsonObject(object, what).hash(kChecksumKey);
  object.erase(kChecksumKey);
  const std::uint64_t found = checksum_of(object.dump());
  if (found != expected) {
    throw CheckpointError(str(
        what, " is damaged: its checksum is ", to_hex(found), ", it should be ", to_hex(expected)));
  }
  return object;
}

} // namespace tessera::checkpoint
