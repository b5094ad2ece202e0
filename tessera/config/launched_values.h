#pragma once

#include <string>

#include "tessera/config/launcher.h"

namespace tessera::config {

/// Returns what with_launcher_values does, for values that came under `name`, which stands in
/// messages.
Launched with_values_of(const Config& given, const std::string& text, const char* name);

} // namespace tessera::config
