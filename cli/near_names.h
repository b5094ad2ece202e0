#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace tessera::cli {

/// Returns, for a command line that could not be parsed, a line such as "did you mean --resume?"
/// for each word that is no command or option but resembles one; "" when none does.
std::string near_names(const CLI::App& app);

} // namespace tessera::cli
