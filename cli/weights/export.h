#pragma once

#include <CLI/CLI.hpp>

namespace tessera::cli {

/// The options and the callback of `tessera export`, which `tessera checkpoint convert` is as well.
void set_up_export(CLI::App& app);

} // namespace tessera::cli
