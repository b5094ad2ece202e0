#pragma once

#include <filesystem>
#include <string>

#include <mpi.h>
#include <unistd.h>

namespace tessera::testing {

/// The name of one folder for all ranks, which the first of them removes. Collective over all
/// processes.
class SharedFolder {
 public:
  SharedFolder() {
    static int made = 0;
    int name[] = {static_cast<int>(::getpid()), made++};
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Bcast(name, 2, MPI_INT, 0, MPI_COMM_WORLD);
    path_ = std::filesystem::temp_directory_path() /
            ("tessera_ranks_" + std::to_string(name[0]) + "_" + std::to_string(name[1]));
  }
  ~SharedFolder() {
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank_ == 0) {
      std::error_code ignored;
      std::filesystem::remove_all(path_, ignored);
    }
    MPI_Barrier(MPI_COMM_WORLD);
  }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;

  std::string path() const {
    return path_.string();
  }
  std::string operator/(const std::string& name) const {
    return (path_ / name).string();
  }
  /// Runs `change(path)` on one rank, between barriers.
  template <typename Change>
  void change(const Change& change) const {
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank_ == 0) {
      change(path_);
    }
    MPI_Barrier(MPI_COMM_WORLD);
  }

 private:
  int rank_ = 0;
  std::filesystem::path path_;
};

} // namespace tessera::testing
