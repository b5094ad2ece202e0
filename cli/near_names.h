#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace tessera::cli {

/// For a command line that could not be read: "did you mean --resume?" for each
/// word that is no command or option but is near one, each on a line of its
/// own; "" when nothing is near.
std::string near_names(const CLI::App& app);

} // namespace tessera::cli
