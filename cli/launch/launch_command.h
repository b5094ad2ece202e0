#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/machine.h"

namespace tessera::cli {

/// What `tessera launch` was asked for.
struct LaunchRequest {
  std::optional<int> ranks; // none: hosts x processes_per_host
  std::string hostfile; // path, "" for this machine alone
  std::string hostfile_text; // its content
  std::optional<int> processes_per_host; // from the configuration
  std::string custom_mpi_options; // from the configuration
  std::vector<std::string> program; // with its arguments
  bool threads_are_set = false; // OMP_NUM_THREADS is in the environment
  // OPENBLAS_CORETYPE for ranks on this machine, "" for OpenBLAS's own choice
  std::string blas_kernel;
  int restart = 0; // 0: first start
};

/// One line of a host file.
struct Host {
  std::string name;
  int slots = 1;
};

/// "name slots=4", "name:4", comments after '#'; a name alone has one slot.
/// Throws: ConfigError naming line and text.
std::vector<Host> parse_hostfile(const std::string& text, const std::string& path);

/// Words as a shell divides them: blanks part, quotes and backslashes keep.
/// Throws: ConfigError when a quote is not closed.
std::vector<std::string> split_words(const std::string& text);

/// The command line of mpirun. Options that the user gives in
/// custom_mpi_options replace those that would be set here, one by one.
/// Throws: ConfigError naming the option, the value and what to write instead.
std::vector<std::string> mpirun_command(const LaunchRequest& request, const Machine& machine);

/// `command` as one line for a shell.
std::string quoted(const std::vector<std::string>& command);

/// The script that runs each rank's program under /bin/sh and says how it
/// ended; see docs/launch.md.
extern const char* const kRankScript;

} // namespace tessera::cli
