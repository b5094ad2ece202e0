#include "cli/doctor/mpi_start.h"

#include <array>
#include <cstdlib>

#include <mpi.h>

#include "tessera/base/error.h"

namespace tessera::cli::doctor {

namespace {

void finalize() {
  int done = 0;
  MPI_Finalized(&done);
  if (done == 0) {
    MPI_Finalize();
  }
}

std::string level_name(int level) {
  switch (level) {
    case MPI_THREAD_SINGLE:
      return "single";
    case MPI_THREAD_FUNNELED:
      return "funneled";
    case MPI_THREAD_SERIALIZED:
      return "serialized";
    case MPI_THREAD_MULTIPLE:
      return "multiple";
    default:
      return str("unknown (", level, ")");
  }
}

} // namespace

MpiFacts start_mpi() {
  int level = MPI_THREAD_SINGLE;
  const int status = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
  if (status != MPI_SUCCESS) {
    throw Error(str("doctor: MPI_Init_thread failed with code ", status));
  }
  std::atexit(finalize);
  MpiFacts facts;
  facts.thread_level = level_name(level);
  MPI_Comm_rank(MPI_COMM_WORLD, &facts.rank);
  MPI_Comm_size(MPI_COMM_WORLD, &facts.size);
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  // "Open MPI v4.1.4, package: Debian OpenMPI, ..."; others use lines.
  const std::string all(text.data(), static_cast<std::size_t>(length));
  int major = 0;
  int minor = 0;
  MPI_Get_version(&major, &minor);
  facts.provider = str(all.substr(0, all.find_first_of(",\n")), " (MPI ", major, ".", minor, ")");
  return facts;
}

} // namespace tessera::cli::doctor
