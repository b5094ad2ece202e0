// The program `tessera`: the commands that need no libtorch, whose libraries take most of a second
// to load, and for all others the program `tessera-commands` beside it in the same process.
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>

#include <unistd.h>

#include "cli/command.h"
#include "cli/run_app.h"

namespace {

/// Whether the first argument that is no flag is a command of this program.
bool is_here(int argc, char** argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (!argument.empty() && argument[0] != '-') {
      for (const auto& command : tessera::cli::commands()) {
        if (command.name == argument) {
          return true;
        }
      }
      return false;
    }
    if (argument == "--version" || argument == "-h" || argument == "--help") {
      return false;
    }
  }
  return false;
}

/// Returns an exit status where the other program cannot be started.
int become_all_commands(char** argv) {
  std::error_code failed;
  const auto own = std::filesystem::read_symlink("/proc/self/exe", failed);
  const std::string program = (own.parent_path() / "tessera-commands").string();
  execv(program.c_str(), argv);
  std::fprintf(
      stderr,
      "tessera: cannot start '%s': %s; it belongs beside the program 'tessera', install or build "
      "both\n",
      program.c_str(),
      std::system_category().message(errno).c_str());
  return 1;
}

} // namespace

int main(int argc, char** argv) {
  if (!is_here(argc, argv)) {
    return become_all_commands(argv);
  }
  const auto app = tessera::cli::make_app();
  tessera::cli::add_commands(*app);
  return tessera::cli::run_app(*app, argc, argv);
}
