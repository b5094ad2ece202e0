#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string>

#include <mpi.h>

#include <torch/version.h>

#include "tessera/base/error.h"
#include "tessera/diagnostics/uncaught_error.h"
#include "tessera/tensor/onednn.h"

#include "cli/agreed_error.h"
#include "cli/command.h"
#include "cli/exit_status.h"
#include "cli/near_names.h"
#include "cli/shortened.h"

namespace tessera::cli {

std::vector<Command>& commands() {
  static std::vector<Command> list;
  return list;
}

} // namespace tessera::cli

namespace {

std::string version_line() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> mpi{};
  int length = 0;
  MPI_Get_library_version(mpi.data(), &length); // allowed before MPI_Init
  const std::string name(mpi.data(), static_cast<std::size_t>(length));
  return tessera::str(
      "tessera ",
      TESSERA_VERSION,
      ", libtorch ",
      TORCH_VERSION,
      ", ",
      name.substr(0, name.find(',')));
}

void say(const std::exception& error, const char* what = "") {
  const std::string text = tessera::cli::with_short_words(error.what());
  std::fprintf(stderr, "tessera: %s%s\n", what, text.c_str());
}

/// For an error that every rank has found alike. Another rank prints it only
/// where rank 0 did not end the job, and so does not have it.
void say_once(const std::exception& error) {
  tessera::diagnostics::let_rank_zero_speak();
  say(error);
}

} // namespace

int main(int argc, char** argv) {
  tessera::avoid_faulty_amx();
  CLI::App app("Tessera trains models that are too large for one device.");
  app.name("tessera");
  app.require_subcommand(1);
  app.set_version_flag("--version", version_line());
  // The logger reads the variable when it is first used, in this process and in those it starts.
  auto* quiet = app.add_flag_callback(
      "-q,--quiet",
      [] { setenv("TESSERA_LOG", "warning", 1); },
      "before the command: say only what went wrong, as TESSERA_LOG=warning");
  app.add_flag_callback(
         "-v,--verbose",
         [] { setenv("TESSERA_LOG", "debug", 1); },
         "before the command: say more, as TESSERA_LOG=debug")
      ->excludes(quiet);
  auto& list = tessera::cli::commands();
  std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  for (const auto& command : list) {
    command.set_up(*app.add_subcommand(command.name, command.help));
  }
  try {
    app.parse(argc, argv);
    return 0;
  } catch (const CLI::RuntimeError& error) {
    return error.get_exit_code(); // what a command ends with
  } catch (const CLI::ParseError& error) {
    const std::string near = tessera::cli::near_names(app);
    // A misspelt command is there: "A subcommand is required" would say that there is none.
    const bool misspelt = error.get_name() == "RequiredError" && !near.empty() &&
                          std::string(error.what()).find("subcommand") != std::string::npos;
    if (!misspelt && app.exit(error) == 0) {
      return 0;
    }
    std::fputs(near.c_str(), stderr);
    return tessera::cli::kWrongUsageStatus;
  } catch (const tessera::ReportedConfigError&) {
    return tessera::cli::kWrongUsageStatus;
  } catch (const tessera::ConfigError& error) {
    // Wrong input is wrong on every rank alike.
    say_once(error);
    return tessera::cli::kWrongUsageStatus;
  } catch (const tessera::cli::AgreedError& error) {
    say_once(error);
    return 1;
  } catch (const tessera::Error& error) {
    say(error);
    return 1;
  } catch (const std::filesystem::filesystem_error& error) {
    // A path that the system refuses where nobody looked for it: too long, not permitted, no room.
    say(tessera::UserError(
        tessera::str("'", error.path1().string(), "': ", error.code().message())));
    return 1;
  } catch (const std::exception& error) {
    say(error, "unexpected: ");
    return 1;
  }
}
