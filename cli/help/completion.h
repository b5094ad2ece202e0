#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace tessera::cli {

/// Returns a bash script that completes the commands and long options of `program`, and names of
/// files everywhere else: `source <(tessera completion bash)`.
std::string bash_completion(const CLI::App& program);

} // namespace tessera::cli
