#pragma once

#include <optional>
#include <string>

#include "tessera/checkpoint/options.h"
#include "tessera/train/model.h"
#include "tessera/train/optimizer.h"

namespace tessera {

/// Whether the folder holds a checkpoint, whole or not. Not collective.
bool checkpoint_exists(const std::string& directory);

/// Writes `<directory>/<tag>/` and makes it the newest, or leaves what was there
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
Saved save(
    const Model& model,
    DistributedOptimizer& optimizer,
    const std::string& directory,
    const std::string& tag,
    const SaveOptions& options = {});

/// A checkpoint of the model alone, without optimizer state; 16-bit parameters are saved as they
/// are. Otherwise as above.
Saved save(
    const Model& model,
    const std::string& directory,
    const std::string& tag,
    const SaveOptions& options = {});

/// Loads a checkpoint written under any layout: now, or right after the
/// partition when there is none yet. Nothing when the folder holds no
/// checkpoint. `optimizer` must live until the first step then.
/// Collective over the world. Threads: step thread only.
/// Throws: CheckpointError on every rank: torn, damaged, of another model (all
/// names and shapes that do not fit are listed).
std::optional<Loaded> load(
    const Model& model,
    DistributedOptimizer& optimizer,
    const std::string& directory,
    const LoadOptions& options = {});

/// The model alone, whether the checkpoint has an optimizer or not. Otherwise as above.
std::optional<Loaded>
load(const Model& model, const std::string& directory, const LoadOptions& options = {});

} // namespace tessera
