// All commands, for the program `tessera` (main.cpp), which starts this one for most of them.
#include <array>
#include <string>

#include <mpi.h>

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

} // namespace

int main(int argc, char** argv) {
  tessera::avoid_faulty_amx();
  const auto app = tessera::cli::make_app();
  app->set_version_flag("--version", version_line());
  tessera::cli::add_commands(*app);
  // Another rank prints what all have found only where rank 0 did not end the job, and so does not
  // have it.
  return tessera::cli::run_app(
      *app, argc, argv, [] { tessera::diagnostics::let_rank_zero_speak(); });
}
