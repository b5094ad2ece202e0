#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include <sys/ioctl.h>
#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/base/json/parse.h"
#include "tessera/config/config.h"
#include "tessera/config/explain.h"
#include "tessera/schedule/schedule.h"

#include "cli/command.h"
#include "cli/number_check.h"

namespace tessera::cli {

namespace config_command {
namespace {

constexpr int kPlainColumns = 80; // where the output is no terminal
constexpr int kWidestColumns = 110;

int terminal_columns() {
  winsize size{};
  const bool terminal =
      isatty(STDOUT_FILENO) != 0 && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return terminal ? std::min<int>(size.ws_col, kWidestColumns) : kPlainColumns;
}

struct Options {
  bool explain = false;
  bool json = false;
  bool markdown = false;
  std::string check;
  int world_size = 0;
};

// What needs more than the file: the order of a custom schedule, the world.
void check_beyond_file(const config::Config& config, int world_size) {
  if (config.custom_schedule) {
    schedule::validate_order(
        schedule::parse_order(*config.custom_schedule),
        config.microbatches,
        config.effective_active_microbatches());
  }
  if (world_size > 0) {
    config::check_world(config, world_size);
  }
}

/// Throws: ConfigError for a job of `tessera train`, which has its configuration in a section. What
/// is no JSON is left to the reader of configurations.
void check_that_it_is_no_job(const std::string& path) {
  OrderedJson found;
  try {
    found = parse_json(without_comments(read_file(path)), path);
  } catch (const Error&) {
    return;
  }
  if (found.is_object() &&
      (found.contains("data") || found.contains("model") || found.contains("steps"))) {
    throw ConfigError(
        str(path,
            " is a job, whose configuration is its section \"parallel\"; write tessera train ",
            path,
            " --check"));
  }
}

void check_file(const Options& options) {
  check_that_it_is_no_job(options.check);
  const config::Config config = config::load_config(options.check);
  try {
    check_beyond_file(config, options.world_size);
  } catch (const ConfigError& error) {
    throw ConfigError(options.check + ": " + error.what());
  }
  if (options.json) {
    std::fputs(config::to_json(config).c_str(), stdout);
  } else {
    std::printf("%s: valid\n", options.check.c_str());
  }
}

void set_up(CLI::App& app) {
  auto options = std::make_shared<Options>();
  auto* action = app.add_option_group("action");
  action->add_flag("--explain", options->explain, "print every key, aligned for a terminal");
  auto* markdown = action->add_flag("--markdown", options->markdown, "print docs/configuration.md");
  auto* check =
      action->add_option("--check", options->check, "validate a file and report every error");
  action->require_option(1);
  app.add_flag(
         "--json",
         options->json,
         "with --explain: the table as JSON; with --check: the configuration "
         "with every default filled in")
      ->excludes(markdown);
  app.add_option(
         "--world-size",
         options->world_size,
         "with --check: also check the degrees against so many processes")
      ->check(positive_number())
      ->needs(check);
  app.callback([options] {
    if (!options->check.empty()) {
      check_file(*options);
    } else if (options->markdown) {
      std::fputs(config::explain_markdown().c_str(), stdout);
    } else {
      const std::string text =
          options->json ? config::explain_json() : config::explain_text(terminal_columns());
      std::fputs(text.c_str(), stdout);
    }
  });
}

const RegisterCommand registered({
    "config",
    "explain or check the configuration of a run",
    set_up,
});

} // namespace
} // namespace config_command

} // namespace tessera::cli
