#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/train/distributed_optimizer.h"
#include "tessera/train/model.h"

namespace tessera {

struct SaveOptions {
  /// true: the whole model in one file each for model and optimizer, gathered
  /// on one rank's host; false: each rank writes what it owns.
  bool full = false;
  /// The oldest checkpoints of the folder are removed once this one is
  /// complete; 0 keeps all.
  int num_kept_checkpoints = 0;
  /// A JSON document of the script's own (steps, place in the data, ...).
  std::string user_content = "null";
};

struct Saved {
  std::string path;
  /// Of parameters and optimizer state, whatever the layout; in meta.json too.
  std::string state_hash;
  std::vector<std::string> warnings;
};

struct LoadOptions {
  /// "" loads the newest whole checkpoint, with a warning for each one that is
  /// torn and passed over.
  std::string tag;
  bool optimizer = true;
};

struct Loaded {
  std::string path;
  std::string user_content;
  std::string state_hash;
  std::vector<std::string> warnings;
};

/// Whether the folder holds a checkpoint, whole or not. Not collective.
bool checkpoint_exists(const std::string& directory);

namespace train {
Saved save(
    ModelCore& model,
    DistributedOptimizer* optimizer,
    const std::string& directory,
    const std::string& tag,
    const SaveOptions& options);
std::optional<Loaded> load(
    const std::shared_ptr<ModelCore>& model,
    DistributedOptimizer* optimizer,
    const std::string& directory,
    const LoadOptions& options);
} // namespace train

/// Writes <directory>/<tag>/ and makes it the newest, or leaves what was there
/// as it was. The folder is one that all ranks see. The model must be
/// partitioned (after the first step, or at once with one partition).
///
/// A folder takes the checkpoints of one model: a process with several gives
/// each a folder of its own, and an optimizer for it.
///
/// Saved: parameters, buffers, optimizer state, random state of each rank, the
/// number of steps done. 16-bit parameters are saved as their f32 masters.
/// Collective over the world. Threads: step thread only.
/// Throws: CheckpointError on every rank, naming the rank and file that failed;
/// when the optimizer is not the model's, or the folder is another model's.
/// Source: Karakus et al. 2021, section 3.2.3.
inline Saved save(
    const Model& model,
    DistributedOptimizer& optimizer,
    const std::string& directory,
    const std::string& tag,
    const SaveOptions& options = {}) {
  return train::save(*model.core(), &optimizer, directory, tag, options);
}

/// Loads a checkpoint written under any layout: now, or right after the
/// partition when there is none yet. Nothing when the folder holds no
/// checkpoint. `optimizer` must live until the first step then.
/// Collective over the world. Threads: step thread only.
/// Throws: CheckpointError on every rank: torn, damaged, of another model (all
/// names and shapes that do not fit are listed).
inline std::optional<Loaded> load(
    const Model& model,
    DistributedOptimizer& optimizer,
    const std::string& directory,
    const LoadOptions& options = {}) {
  return train::load(model.core(), &optimizer, directory, options);
}

} // namespace tessera
