#pragma once

#include <string>

namespace tessera::config {

/// Returns the key table for a terminal `columns` wide: name, default, allowed values
/// in aligned columns, each key's description below it.
std::string explain_text(int columns);

/// Returns the key table as a JSON list of objects with name, aliases, section, type,
/// default, allowed, status, source, description and reason.
std::string explain_json();

/// docs/configuration.md, whole.
std::string explain_markdown();

} // namespace tessera::config
