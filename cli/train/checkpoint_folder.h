#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/train/job.h"

namespace tessera::cli {

/// Bytes that one checkpoint of a job's model takes: parameters as f32 and what
/// the optimizer keeps of each.
std::int64_t checkpoint_bytes(const Job& job, std::int64_t parameters);

/// A small file, synced, in a folder that is made when it is missing: a
/// read-only or full file system refuses it. Removed at the end.
/// Not collective. Threads: one at a time.
class FolderProbe {
 public:
  /// Throws: CheckpointError naming the path and the system's reason.
  FolderProbe(const std::string& directory, int rank);
  ~FolderProbe();
  FolderProbe(const FolderProbe&) = delete;
  FolderProbe& operator=(const FolderProbe&) = delete;

  const std::string& path() const {
    return path_;
  }

 private:
  std::string path_;
};

/// What one rank sees of every rank's probe: "" when all are there and there
/// is room for `bytes`, else what is wrong and what to do. Not collective.
std::string judge_folder(
    const std::string& directory,
    const std::vector<std::string>& probes,
    std::int64_t bytes);

/// Before a run: why `directory`, which need not be there yet, could not take a checkpoint of
/// `bytes`; "" when nothing speaks against it. It, or the nearest folder above it that exists, gets
/// a small file for a moment; nothing is made. Not collective.
std::string judge_future_folder(const std::string& directory, std::int64_t bytes);

/// The message about a folder that cannot be written; `who` is "" or " (rank 1)".
std::string
not_writable(const std::string& directory, const std::string& who, const std::string& why);

} // namespace tessera::cli
