#pragma once

#include <string>

#include "tessera/config/config.h"

namespace tessera::cli {

/// A job's JSON text with `parallel` replaced and `strategy` left out.
std::string job_with_parallel(const std::string& job_json, const config::Config& parallel);

} // namespace tessera::cli
