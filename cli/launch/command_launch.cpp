#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <system_error>
#include <vector>

#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/config/config.h"
#include "tessera/config/launcher.h"
#include "tessera/optim/step_seconds.h"

#include "cli/blas_kernel.h"
#include "cli/command.h"
#include "cli/exit_status.h"
#include "cli/launch/leftovers.h"
#include "cli/launch/mpirun_command.h"
#include "cli/launch/restarts.h"
#include "cli/launch/run_ranks.h"
#include "cli/number_check.h"

namespace tessera::cli {

namespace launch_command {
namespace {

struct Options {
  int ranks = 0;
  std::string hostfile;
  std::string config;
  std::vector<std::string> program;
  int grace_seconds = 60;
  int max_restarts = 0;
  bool dry_run = false;
};

LaunchRequest request_of(const Options& options, const std::vector<std::string>& program) {
  LaunchRequest request;
  request.program = program;
  if (options.ranks > 0) {
    request.ranks = options.ranks;
  }
  if (!options.hostfile.empty()) {
    request.hostfile = options.hostfile;
    request.hostfile_text = read_file(options.hostfile);
  }
  if (!options.config.empty()) {
    const config::Config config = config::load_config(options.config);
    request.processes_per_host = config.processes_per_host;
    request.custom_mpi_options = config.custom_mpi_options;
  }
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread runs yet
  request.threads_are_set = std::getenv("OMP_NUM_THREADS") != nullptr;
  for (const char* name :
       {config::kLauncherVariable,
        optim::kStepSecondsVariable,
        "TESSERA_LOG",
        "OPENBLAS_CORETYPE"}) {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread runs yet
    if (!options.hostfile.empty() && std::getenv(name) != nullptr) {
      request.passed_on.emplace_back(name);
    }
  }
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread runs yet
  if (std::getenv("OPENBLAS_CORETYPE") == nullptr) {
    request.blas_kernel =
        better_blas_kernel(picked_blas_kernel(), processor_features()).value_or("");
  }
  return request;
}

/// Throws: ConfigError when the program cannot run, once here instead of once on every rank.
void check_program(const LaunchRequest& request) {
  const std::string& program = request.program.front();
  if (request.hostfile.empty() && program.find('/') != std::string::npos &&
      access(program.c_str(), X_OK) != 0) {
    throw ConfigError(str("cannot run '", program, "': ", std::system_category().message(errno)));
  }
}

void sweep_leftovers() {
  const auto gone = sweep(find_leftovers(LeftoverPlaces::usual()));
  if (!gone.empty()) {
    std::fprintf(stderr, "tessera: removed %s\n", summary(gone).c_str());
  }
}

void launch(const Options& options, const std::vector<std::string>& program) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread runs yet
  setenv("TESSERA_TERMINAL", isatty(STDOUT_FILENO) == 1 ? "1" : "0", 0);
  LaunchRequest request = request_of(options, program);
  const Machine machine = this_machine();
  if (options.dry_run) {
    std::printf("%s\n", quoted(mpirun_command(request, machine)).c_str());
    return;
  }
  check_program(request);
  sweep_leftovers();
  const RunOutcome outcome = run_with_restarts(
      [&](int restart) {
        request.restart = restart;
        return run_ranks(
            mpirun_command(request, machine), std::chrono::seconds(options.grace_seconds));
      },
      options.max_restarts);
  if (outcome.exit_status == kResumableStatus) {
    std::fprintf(stderr, "tessera: the run was stopped and can be resumed (exit status 75)\n");
    throw CLI::RuntimeError(outcome.exit_status);
  }
  if (outcome.exit_status != 0) {
    std::fprintf(
        stderr,
        "tessera: the run ended with exit status %d%s\n",
        outcome.exit_status,
        outcome.asked_to_end ? " after it was asked to end" : "");
    throw CLI::RuntimeError(outcome.exit_status);
  }
}

constexpr const char* kFooter =
    "Examples:\n"
    "  tessera launch -n 4 -- tessera train job.json\n"
    "  tessera launch -n 8 --hostfile hosts -- ./my_training   "
    "(hosts: lines such as 'node1 slots=4')\n"
    "  tessera launch --config run.json --max-restarts 3 -- ./my_training\n"
    "\n"
    "Each rank gets cores / ranks-on-its-host threads unless OMP_NUM_THREADS "
    "is "
    "set.\n"
    "SIGTERM or Ctrl-C asks the ranks to end in good order; a second one ends "
    "them now.\n"
    "Exit status: the program's, of which 75 means stopped with everything "
    "saved; 128 + N when signal N killed it, 2 for wrong usage.";

const RegisterCommand kLaunch({
    "launch",
    "run a program on several ranks with mpirun: tessera launch -n 4 -- prog",
    [](CLI::App& app) {
      auto options = std::make_shared<Options>();
      app.add_option(
             "-n",
             options->ranks,
             "number of ranks; without it processes_per_host of --config on "
             "every host")
          ->check(positive_number());
      app.add_option(
          "--hostfile",
          options->hostfile,
          "hosts, one a line: NAME slots=N; without it this machine alone");
      app.add_option(
          "--config",
          options->config,
          "configuration with processes_per_host and custom_mpi_options");
      app.add_option(
             "--grace",
             options->grace_seconds,
             "seconds that ranks have to end in good order after SIGTERM")
          ->check(non_negative_number())
          ->capture_default_str();
      app.add_option(
             "--max-restarts",
             options->max_restarts,
             "start a job that fails again, at most so many times, with "
             "TESSERA_RESTART=1, 2, ... in its environment; not after wrong "
             "usage (exit status 2) or when it was asked to end")
          ->check(non_negative_number())
          ->capture_default_str();
      app.add_flag("--dry-run", options->dry_run, "print the command only");
      app.add_option("program", options->program, "after --: the program and its arguments")
          ->required();
      app.footer(kFooter);
      app.callback([options] { launch(*options, options->program); });
    },
});

} // namespace
} // namespace launch_command

} // namespace tessera::cli
