#pragma once

#include <cstdint>
#include <future>
#include <string>

#include "tessera/checkpoint/options.h"
#include "tessera/checkpoint/subject.h"
#include "tessera/checkpoint/writer.h"
#include "tessera/context/context.h"

/// Checkpoints that all ranks of a world write together. Threads: step thread only.
namespace tessera::checkpoint {

/// A checkpoint between its beginning and its end. In between a rank writes its files without the
/// others, on this thread or on one of its own. One at a time in a folder.
class PendingSave {
 public:
  enum class Writes { kHere, kInBackground };

  /// Begins `<directory>/<tag>/`; `steps` is the number of steps done. kHere writes this rank's
  /// files before it returns; kInBackground takes copies of all tensors and lets a thread write
  /// them, which does not communicate. Collective over the world.
  /// Throws: CheckpointError on every rank, also when a save in the background into this folder is
  /// not over.
  PendingSave(
      Context& context,
      const Subject& subject,
      std::int64_t steps,
      const std::string& directory,
      const std::string& tag,
      const SaveOptions& options,
      Writes writes);
  /// Waits for the thread. What was not finished is no checkpoint; the next save removes it.
  ~PendingSave();
  PendingSave(const PendingSave&) = delete;
  PendingSave& operator=(const PendingSave&) = delete;

  /// Returns whether this rank's files are written, or failed. Not collective.
  bool written() const;
  /// Waits until all files are written, and makes the checkpoint complete and the newest. Once.
  /// Collective over the world.
  /// Throws: CheckpointError on every rank, naming the rank and file that failed.
  Saved finish();

 private:
  Context& context_;
  SaveInfo info_;
  Writer writer_;
  RankContent content_; // of the thread, while it runs
  std::string folder_; // while a save in the background is not over
  std::future<RankFiles> files_;
};

} // namespace tessera::checkpoint
