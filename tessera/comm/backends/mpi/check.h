#pragma once

#include <cstddef>
#include <string_view>

#include <mpi.h>

#include "tessera/base/error.h"

namespace tessera::comm::mpi {

/// Longer messages travel in pieces, since MPI counts bytes in an int.
inline constexpr std::size_t kPieceBytes = std::size_t{1} << 30;

/// Every MPI call goes through here; communicators have MPI_ERRORS_RETURN.
/// Throws: CommError with MPI's own text and `what` was tried.
inline void check_mpi(int code, std::string_view what) {
  if (code == MPI_SUCCESS) {
    return;
  }
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw CommError(str(what, " failed: ", text));
}

/// Returns whether MPI can be called at all, since destructors may run after MPI_Finalize.
inline bool mpi_is_running() {
  int initialized = 0;
  int finalized = 0;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  return initialized != 0 && finalized == 0;
}

/// A communicator that this object owns and frees if MPI still runs.
class Communicator {
 public:
  Communicator() = default;
  /// Takes ownership of `comm` and makes its errors return codes.
  explicit Communicator(MPI_Comm comm) : comm_(comm) {
    check_mpi(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }
  ~Communicator() {
    if (comm_ != MPI_COMM_NULL && mpi_is_running()) {
      MPI_Comm_free(&comm_);
    }
  }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  MPI_Comm get() const {
    return comm_;
  }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

} // namespace tessera::comm::mpi
