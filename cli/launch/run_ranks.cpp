#include "cli/launch/run_ranks.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include <unistd.h>

#include "tessera/base/error.h"

#include "cli/exit_status.h"

namespace tessera::cli {

namespace {

namespace fs = std::filesystem;

constexpr const char* kVariable = "TESSERA_RANK_ENDS";

/// The file to which the ranks add "STATUS RANKS" when they end. Where none can be made (a full
/// disk), nothing is known of the ranks.
class RankEnds {
 public:
  RankEnds() {
    std::error_code failed;
    const fs::path folder = fs::temp_directory_path(failed);
    std::string path = (folder / str("tessera-ends-", ::getpid(), "-XXXXXX")).string();
    const int file = failed ? -1 : ::mkstemp(path.data());
    if (file < 0) {
      return;
    }
    ::close(file);
    path_ = path;
    // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread runs
    ::setenv(kVariable, path_.c_str(), /*overwrite=*/1);
  }
  ~RankEnds() {
    if (!path_.empty()) {
      // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread runs
      ::unsetenv(kVariable);
      ::unlink(path_.c_str());
    }
  }
  RankEnds(const RankEnds&) = delete;
  RankEnds& operator=(const RankEnds&) = delete;

  /// Returns whether as many ranks as the run had have ended, each with this status.
  bool all_ended_with(int wanted) const {
    std::ifstream file(path_);
    int ended = 0;
    int ranks = 0;
    for (int status = 0; file >> status >> ranks; ++ended) {
      if (status != wanted) {
        return false;
      }
    }
    return ended > 0 && ended == ranks;
  }

 private:
  std::string path_; // "" where there is no file
};

} // namespace

RunOutcome run_ranks(
    const std::vector<std::string>& command,
    std::chrono::seconds grace,
    const std::function<bool()>& enough) {
  const RankEnds ends;
  RunOutcome outcome = run_child(command, grace, enough);
  if (outcome.exit_status != 0 && !outcome.asked_to_end && ends.all_ended_with(0)) {
    std::fprintf(
        stderr,
        "tessera: mpirun ended with exit status %d although every rank ended with 0, as it does "
        "when a rank has not called MPI_Finalize; the run counts as done\n",
        outcome.exit_status);
    outcome.exit_status = 0;
  } else if (
      outcome.exit_status != kResumableStatus && outcome.asked_to_end &&
      ends.all_ended_with(kResumableStatus)) {
    // Asked twice it may crash while the ranks are at their end.
    std::fprintf(
        stderr,
        "tessera: mpirun ended with exit status %d after every rank had stopped with everything "
        "saved\n",
        outcome.exit_status);
    outcome.exit_status = kResumableStatus;
  }
  return outcome;
}

} // namespace tessera::cli
