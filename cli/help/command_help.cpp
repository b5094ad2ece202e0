#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/text.h"

#include "cli/command.h"
#include "cli/help/completion.h"
#include "cli/help/man_page.h"

namespace tessera::cli {

namespace help_command {
namespace {

/// The command of this name below another one. `path` is how that one is called.
const CLI::App& below(const CLI::App& above, const std::string& path, const std::string& name) {
  std::vector<std::string> names;
  for (const CLI::App* command : above.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_name() == name) {
      return *command;
    }
    if (!command->get_name().empty()) { // groups of options have no name
      names.push_back(command->get_name());
    }
  }
  if (names.empty()) {
    throw ConfigError(str("'", path, "' has no commands below it; write tessera help ", path));
  }
  const std::string near = nearest_alike(name, names);
  throw ConfigError(
      str("there is no command '",
          path.empty() ? name : path + " " + name,
          "'; ",
          near.empty() ? str("there are ", join(names, ", ")) : str("did you mean '", near, "'?")));
}

std::string help_of(const CLI::App& program, const std::vector<std::string>& words) {
  if (words.empty()) {
    // CLI::App::help would explain the command that was given, which is this one.
    return program.get_formatter()->make_help(
        &program, program.get_name(), CLI::AppFormatMode::Normal);
  }
  const CLI::App* at = &program;
  std::string path;
  std::string before = program.get_name(); // what the usage line has before the last word
  for (const std::string& word : words) {
    before += path.empty() ? "" : " " + at->get_name();
    at = &below(*at, path, word);
    path += (path.empty() ? "" : " ") + word;
  }
  return at->help(before);
}

struct Options {
  std::vector<std::string> command; // and those below it
  std::string files; // folder
};

void write_text(const std::filesystem::path& path, const std::string& text) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text << std::flush;
  if (!file) {
    throw Error(str("cannot write '", path.string(), "'"));
  }
}

/// Writes man pages and completions to where the folder `share` of an installation has them.
void write_files(const CLI::App& program, const std::filesystem::path& folder) {
  const DescribedCommand described = describe(program);
  for (const auto& [name, text] : man_pages(described, "tessera " TESSERA_VERSION)) {
    write_text(folder / "man/man1" / name, text);
  }
  const std::string& name = described.name;
  write_text(folder / "bash-completion/completions" / name, bash_completion(described));
  write_text(folder / "zsh/site-functions" / ("_" + name), zsh_completion(described));
  // Debian's zsh looks there for files of packages, and not into the folder above.
  write_text(folder / "zsh/vendor-completions" / ("_" + name), zsh_completion(described));
  write_text(folder / "fish/vendor_completions.d" / (name + ".fish"), fish_completion(described));
}

void set_up_help(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.add_option("command", options->command, "the command to explain, as in help data prepare");
  app.add_option(
      "--files",
      options->files,
      "write man pages, and completions of all shells, into this folder, as below /usr/share");
  app.callback([&app, options] {
    if (!options->files.empty()) {
      write_files(*app.get_parent(), options->files);
    } else {
      std::fputs(help_of(*app.get_parent(), options->command).c_str(), stdout);
    }
  });
}

std::string completion_of(const DescribedCommand& program, const std::string& shell) {
  if (shell == "bash") {
    return bash_completion(program);
  }
  return shell == "zsh" ? zsh_completion(program) : fish_completion(program);
}

void set_up_completion(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  app.add_option("shell", *shell, "the shell to complete for")
      ->required()
      ->check(CLI::IsMember({"bash", "fish", "zsh"}));
  app.footer(
      "  bash, zsh: source <(tessera completion bash)\n"
      "  fish: tessera completion fish | source");
  app.callback([&app, shell] {
    std::fputs(completion_of(describe(*app.get_parent()), *shell).c_str(), stdout);
  });
}

const RegisterCommand help({"help", "explains a command", set_up_help});
const RegisterCommand completion(
    {"completion", "prints a script that completes commands and options", set_up_completion});

} // namespace
} // namespace help_command

} // namespace tessera::cli
