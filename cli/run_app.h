#pragma once

#include <functional>
#include <memory>

#include <CLI/CLI.hpp>

namespace tessera::cli {

/// Returns an app without commands, with the flags that stand before one. The logger reads what
/// they set when it is first used, in this process and in those it starts.
std::unique_ptr<CLI::App> make_app();

/// Adds the registered commands (command.h), by their names.
void add_commands(CLI::App& app);

/// Runs what the arguments say. Returns the exit status of the process, after one message for an
/// error. `speaks` is asked before the message of an error that every rank has found alike: whether
/// this one prints it.
int run_app(
    CLI::App& app,
    int argc,
    char** argv,
    const std::function<bool()>& speaks = [] { return true; });

} // namespace tessera::cli
