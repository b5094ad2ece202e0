#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

namespace tessera::checkpoint {

// Private to this folder's sources: nlohmann's types stay out of public
// headers.

/// Parses a text; a key given twice in one object is an error.
/// Throws: CheckpointError that begins with `what`.
nlohmann::json parse_json(const std::string& text, const std::string& what);

/// A value as text for a message, cut after 80 characters.
std::string brief(const nlohmann::json& value);

} // namespace tessera::checkpoint
