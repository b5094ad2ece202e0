#pragma once

#include <CLI/CLI.hpp>

namespace tessera::cli {

/// Checks of an option's number. CLI11's own PositiveNumber writes its upper
/// end out in 309 digits.
CLI::Validator positive_number();
CLI::Validator non_negative_number();

} // namespace tessera::cli
