#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

namespace tessera::checkpoint {

// This header is private to this folder's sources, so that nlohmann's types stay out of public
// headers.

/// Parses a text. A key that occurs twice in one object is an error.
/// Throws: CheckpointError that begins with `what`.
nlohmann::json parse_json(const std::string& text, const std::string& what);

/// Returns a value as text for a message, cut after 80 characters.
std::string brief(const nlohmann::json& value);

/// Reads a JSON object and reports faults: every access that fails throws a CheckpointError that
/// names the object, the key and the value found.
class JsonObject {
 public:
  /// `value` must outlive this.
  JsonObject(const nlohmann::json& value, std::string what);

  const nlohmann::json& at(const char* key) const;
  std::string string(const char* key) const;
  std::uint64_t hash(const char* key) const;
  const nlohmann::json& list(const char* key) const;

  std::string what(const char* key) const;

 private:
  const nlohmann::json& value_;
  std::string what_;
};

/// Returns a whole number from 0 to 2^63 - 1.
std::uint64_t unsigned_of(const nlohmann::json& value, const std::string& what);

/// Returns the object as indented text with a "checksum" over the rest.
std::string seal(nlohmann::json object);
/// Parses such text. Throws: CheckpointError when the checksum differs.
nlohmann::json unseal(const std::string& text, const std::string& what);

} // namespace tessera::checkpoint
