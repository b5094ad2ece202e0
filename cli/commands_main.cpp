// All commands, for the program `tessera` (main.cpp), which starts this one for most of them.
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string>

#include <mpi.h>
#include <unistd.h>

#include <torch/version.h>

#include "tessera/base/error.h"
#include "tessera/diagnostics/uncaught_error.h"
#include "tessera/tensor/onednn.h"

#include "cli/run_app.h"

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

/// Ends the process behind everything that main and what it called have registered for the exit,
/// and in front of the destructors of loaded libraries: libtorch takes its operators out of its
/// tables one by one, a fifth of what a short command takes in all.
void skip_destructors_of_libraries() {
  ::on_exit(
      [](int status, void*) {
        std::fflush(nullptr);
        ::_exit(status);
      },
      nullptr);
}

} // namespace

int main(int argc, char** argv) {
  skip_destructors_of_libraries(); // the first that is registered is the last that runs
  tessera::avoid_faulty_amx();
  const auto app = tessera::cli::make_app();
  app->set_version_flag("--version", version_line());
  tessera::cli::add_commands(*app);
  // Another rank prints what all have found only where rank 0 did not end the job, and so does not
  // have it.
  return tessera::cli::run_app(*app, argc, argv, tessera::diagnostics::speaks_for_all);
}
