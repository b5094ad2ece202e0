#pragma once

#include <string>
#include <vector>

#include "tessera/config/config.h"

namespace tessera::cli {

/// The keys of `config` that a plan decides and that do not have their defaults
/// (degrees, microbatches, schedule, placement, partition).
std::vector<std::string> planned_keys_said(const config::Config& config);

/// `base` with every key that a plan decides taken from `planned`, the JSON of
/// planner::to_config_json; all other keys stay.
config::Config with_plan(const config::Config& base, const std::string& planned);

/// A job's JSON text with `parallel` replaced and `strategy` left out.
std::string job_with_parallel(const std::string& job_json, const config::Config& parallel);

/// The keys that differ from their defaults.
std::string to_short_json(const config::Config& config);

} // namespace tessera::cli
