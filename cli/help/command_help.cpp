#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

#include "cli/command.h"
#include "cli/help/completion.h"

namespace tessera::cli {

namespace help_command {
namespace {

std::string help_of(const CLI::App& program, const std::string& name) {
  if (name.empty()) {
    // CLI::App::help would explain the command that was given, which is this one.
    return program.get_formatter()->make_help(
        &program, program.get_name(), CLI::AppFormatMode::Normal);
  }
  std::vector<std::string> names;
  for (const CLI::App* command : program.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_name() == name) {
      return command->help(program.get_name());
    }
    names.push_back(command->get_name());
  }
  throw ConfigError(
      str("there is no command '", name, "'; did you mean '", nearest(name, names), "'?"));
}

void set_up_help(CLI::App& app) {
  auto name = std::make_shared<std::string>();
  app.add_option("command", *name, "the command to explain");
  app.callback([&app, name] { std::fputs(help_of(*app.get_parent(), *name).c_str(), stdout); });
}

void set_up_completion(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  app.add_option("shell", *shell, "the shell to complete for")
      ->required()
      ->check(CLI::IsMember({"bash"}));
  app.callback([&app, shell] { std::fputs(bash_completion(*app.get_parent()).c_str(), stdout); });
}

const RegisterCommand help({"help", "explains a command", set_up_help});
const RegisterCommand completion(
    {"completion",
     "prints a script that completes commands and options: source <(tessera completion bash)",
     set_up_completion});

} // namespace
} // namespace help_command

} // namespace tessera::cli
