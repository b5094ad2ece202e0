#pragma once

#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace tessera::cli {

/// One subcommand of the program `tessera`. `set_up` adds options and a
/// callback to its CLI11 app; the callback sets the exit status by returning
/// or throwing: an Error is printed as one message and gives status 1, a
/// ConfigError or a wrong command line status 2.
struct Command {
  std::string name;
  std::string help;
  std::function<void(CLI::App&)> set_up;
};

/// All registered commands, by name.
std::vector<Command>& commands();

/// Adds a command at program start; one static object in each
/// cli/command_<name>.cpp.
struct RegisterCommand {
  explicit RegisterCommand(Command command) {
    commands().push_back(std::move(command));
  }
};

} // namespace tessera::cli
