#pragma once

#include <string>
#include <vector>

#include "tessera/config/config.h"

namespace tessera::planner {

/// Returns the names of the keys that a plan decides (degrees, microbatches, schedule, placement,
/// partition) and that do not have their defaults in `config`.
std::vector<std::string> planned_keys_said(const config::Config& config);

/// Returns those of planned_keys_said(base) that have another value in `planned`.
std::vector<std::string> replaced_keys(const config::Config& base, const config::Config& planned);

/// Returns `base` with every key that a plan decides taken from `planned`.
/// Throws: ConfigError when the two do not go together.
config::Config with_plan(const config::Config& base, const config::Config& planned);
/// The same for the text of `to_config_json` (to_config.h).
config::Config with_plan(const config::Config& base, const std::string& planned);

/// Returns the keys that differ from their defaults, as JSON.
std::string to_short_json(const config::Config& config);

} // namespace tessera::planner
