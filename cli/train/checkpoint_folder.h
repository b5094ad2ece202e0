#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/train/job.h"

namespace tessera::cli {

/// Returns the bytes of one checkpoint of a job's model: parameters as f32 and the optimizer's
/// state of each.
std::int64_t checkpoint_bytes(const Job& job, std::int64_t parameters);

/// A small file that tests whether a folder can be written: it is written and synced, which a
/// read-only or full file system refuses, and removed with this object. A missing folder is made.
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

/// Returns "" when one rank sees the probes of all ranks and there is room for `bytes`, else what
/// is wrong and what to do. Not collective.
std::string judge_folder(
    const std::string& directory,
    const std::vector<std::string>& probes,
    std::int64_t bytes);

/// Returns why a checkpoint of `bytes` could not be saved in `directory`, which need not exist yet;
/// "" when no reason is found. A small file is written to it, or to the nearest folder above it
/// that exists, and removed again; no folder is made. Not collective.
std::string judge_future_folder(const std::string& directory, std::int64_t bytes);

/// The message about a folder that cannot be written; `who` is "" or " (rank 1)".
std::string
not_writable(const std::string& directory, const std::string& who, const std::string& why);

} // namespace tessera::cli
