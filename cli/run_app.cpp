#include "cli/run_app.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <system_error>

#include "tessera/base/error.h"

#include "cli/agreed_error.h"
#include "cli/command.h"
#include "cli/exit_status.h"
#include "cli/near_names.h"
#include "cli/shortened.h"

namespace tessera::cli {

namespace {

void say(const std::exception& error, const char* what = "") {
  const std::string text = with_short_words(error.what());
  std::fprintf(stderr, "tessera: %s%s\n", what, text.c_str());
}

// What was printed may be lost only now (`tessera plan --json > full_disk/plan.json`).
int printed(int status) {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) {
    return status;
  }
  std::fprintf(
      stderr,
      "tessera: what the command printed could not be written: %s\n",
      errno != 0 ? std::system_category().message(errno).c_str() : "the output failed");
  return status == 0 ? 1 : status;
}

} // namespace

std::vector<Command>& commands() {
  static std::vector<Command> list;
  return list;
}

std::unique_ptr<CLI::App> make_app() {
  auto app = std::make_unique<CLI::App>("Tessera trains models that are too large for one device.");
  app->name("tessera");
  app->require_subcommand(1);
  auto* quiet = app->add_flag_callback(
      "-q,--quiet",
      [] { setenv("TESSERA_LOG", "warning", 1); },
      "before the command: say only what went wrong, as TESSERA_LOG=warning");
  app->add_flag_callback(
         "-v,--verbose",
         [] { setenv("TESSERA_LOG", "debug", 1); },
         "before the command: say more, as TESSERA_LOG=debug")
      ->excludes(quiet);
  return app;
}

void add_commands(CLI::App& app) {
  auto& list = commands();
  std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  for (const auto& command : list) {
    command.set_up(*app.add_subcommand(command.name, command.help));
  }
}

int run_app(CLI::App& app, int argc, char** argv, const std::function<bool()>& speaks) {
  try {
    app.parse(argc, argv);
    return printed(0);
  } catch (const CLI::RuntimeError& error) {
    return printed(error.get_exit_code()); // what a command ends with
  } catch (const CLI::ParseError& error) {
    const std::string near = near_names(app);
    // A misspelt command is there: "A subcommand is required" would say that there is none.
    const bool misspelt = error.get_name() == "RequiredError" && !near.empty() &&
                          std::string(error.what()).find("subcommand") != std::string::npos;
    if (!misspelt && app.exit(error) == 0) {
      return 0;
    }
    std::fputs(near.c_str(), stderr);
    return kWrongUsageStatus;
  } catch (const ReportedConfigError&) {
    return kWrongUsageStatus;
  } catch (const ConfigError& error) {
    // Wrong input is wrong on every rank alike.
    if (speaks()) {
      say(error);
    }
    return kWrongUsageStatus;
  } catch (const AgreedError& error) {
    if (speaks()) {
      say(error);
    }
    return 1;
  } catch (const Error& error) {
    say(error);
    return 1;
  } catch (const std::filesystem::filesystem_error& error) {
    // A path that the system refuses where nobody looked for it: too long, not permitted, no room.
    say(UserError(str("'", error.path1().string(), "': ", error.code().message())));
    return 1;
  } catch (const std::exception& error) {
    say(error, "unexpected: ");
    return 1;
  }
}

} // namespace tessera::cli
