#pragma once

#include <string>

#include <nlohmann/json.hpp>

#include "tessera/config/findings.h"

namespace tessera::config {

/// Parses JSON; a key that stands twice in one object becomes a finding.
/// Throws: ConfigError under `origin` when the text is no JSON (with line and
/// column) or is nested so deeply that it cannot be a configuration.
nlohmann::json strict_json(
    const std::string& text,
    const std::string& origin,
    Findings& findings);

/// A value for people: texts are cut short, objects and lists only named.
std::string describe(const nlohmann::json& value);

/// `text` in quotes, cut short.
std::string quoted(const std::string& text);

} // namespace tessera::config
