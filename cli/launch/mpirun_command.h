#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cli/machine.h"

namespace tessera::cli {

/// What `tessera launch` is to start.
struct LaunchRequest {
  std::optional<int> ranks; // nullopt: hosts x processes_per_host
  std::string hostfile; // path, "" for this machine only
  std::string hostfile_text; // its content
  std::optional<int> processes_per_host; // from the configuration
  std::string custom_mpi_options; // from the configuration
  std::vector<std::string> program; // with its arguments
  bool threads_are_set = false; // whether OMP_NUM_THREADS is in the environment
  // OPENBLAS_CORETYPE for ranks on this machine, "" for OpenBLAS's own choice
  std::string blas_kernel;
  /// Variables of this environment that ranks on other hosts get too: mpirun passes none on.
  std::vector<std::string> passed_on;
  int restart = 0; // number of the restart; 0: the first start
};

/// One line of a host file.
struct Host {
  std::string name;
  int slots = 1;
};

/// Parses lines such as "name slots=4" or "name:4", with comments after '#'. A name without slots
/// has one. Throws: ConfigError naming line and text.
std::vector<Host> parse_hostfile(const std::string& text, const std::string& path);

/// Splits a text as a shell does: at blanks, except in quotes and after a backslash.
/// Throws: ConfigError when a quote is not closed.
std::vector<std::string> split_words(const std::string& text);

/// Returns the command line of mpirun. An option that the user gives in
/// custom_mpi_options replaces the one that would be set here.
/// Throws: ConfigError naming the option, the value and what to write instead.
std::vector<std::string> mpirun_command(const LaunchRequest& request, const Machine& machine);

/// Returns `command` as one line for a shell.
std::string quoted(const std::vector<std::string>& command);

} // namespace tessera::cli
