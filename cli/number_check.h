#pragma once

#include <CLI/CLI.hpp>

namespace tessera::cli {

/// Checks the number of an option. The messages of CLI11's own PositiveNumber print its upper bound
/// with 309 digits.
CLI::Validator positive_number();
CLI::Validator non_negative_number();

} // namespace tessera::cli
