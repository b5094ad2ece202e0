#pragma once

#include <CLI/CLI.hpp>

namespace tessera::cli {

/// Checks the number of an option. The messages of CLI11's own PositiveNumber print its upper bound
/// with 309 digits.
CLI::Validator positive_number();
CLI::Validator non_negative_number();

/// Turns a number of bytes, with a unit or without (2000000, 24GiB, 0.5GiB), into whole bytes.
CLI::Validator size_in_bytes();

} // namespace tessera::cli
