#pragma once

#include <memory>
#include <optional>
#include <string>

#include "tessera/checkpoint/options.h"
#include "tessera/train/model.h"
#include "tessera/train/optimizer.h"

namespace tessera {

namespace checkpoint {
class PendingSave;
} // namespace checkpoint

/// Returns whether the folder holds a checkpoint, whole or not. Not collective.
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

/// Writes a checkpoint of the model alone, without optimizer state; 16-bit parameters are saved as
/// they are. Otherwise as above.
Saved save(
    const Model& model,
    const std::string& directory,
    const std::string& tag,
    const SaveOptions& options = {});

/// A checkpoint that threads of the ranks write while training goes on; from save_in_background.
/// Threads: step thread only.
class BackgroundSave {
 public:
  explicit BackgroundSave(std::unique_ptr<checkpoint::PendingSave> pending);
  /// Waits for this rank's thread. A save that was not finished is no checkpoint: the ones before
  /// stay as they were.
  ~BackgroundSave();
  BackgroundSave(BackgroundSave&& other) noexcept;
  BackgroundSave& operator=(BackgroundSave&& other) noexcept;

  /// Returns whether this rank's files are written, or failed; others may not be so far. Not
  /// collective.
  bool written() const;
  /// Waits for the files of all ranks, and makes the checkpoint complete and the newest. Once.
  /// Collective over the world.
  /// Throws: CheckpointError on every rank, naming the rank and file that failed; earlier
  /// checkpoints stay as they were then.
  Saved finish();

 private:
  std::unique_ptr<checkpoint::PendingSave> pending_;
};

/// As save, but returns as soon as every rank has copies of what it writes; they take the memory of
/// its part of the checkpoint until `finish`. Finish it before the next save into the folder.
/// Collective over the world. Threads: step thread only. Throws: as save.
BackgroundSave save_in_background(
    const Model& model,
    DistributedOptimizer& optimizer,
    const std::string& directory,
    const std::string& tag,
    const SaveOptions& options = {});

/// Loads a checkpoint written under any layout; does nothing when the folder holds
/// no checkpoint. Values, options of the optimizer and random state are there
/// when it returns, also before the partition, when every rank takes the whole
/// model. The optimizer's state is then loaded with the partition, until which
/// `optimizer` must live; a model of delayed initialisation is, too.
/// Collective over the world. Threads: step thread only.
/// Throws: CheckpointError on every rank: torn, damaged, of another model (all
/// names and shapes that do not fit are listed).
std::optional<Loaded> load(
    const Model& model,
    DistributedOptimizer& optimizer,
    const std::string& directory,
    const LoadOptions& options = {});

/// Loads the model alone, whether the checkpoint has an optimizer or not. Otherwise as above.
std::optional<Loaded>
load(const Model& model, const std::string& directory, const LoadOptions& options = {});

/// Writes the whole model's parameters and buffers to one file, which a script without this library
/// reads with `torch::load(net, path)`: the format of `torch::save(net, path)` for the modules as
/// the script made them, also where tensor parallelism replaced some. After the partition a rank
/// holds its own tensors only, so torch::save of the module would write the others empty. World
/// rank 0 gathers the tensors on its host and writes; the file takes its name when it is complete.
///
/// What a module's own override of `torch::nn::Module::save` would write besides is not in it.
/// Collective over the world. Threads: step thread only.
/// Throws: ConfigError before the partition where modules were replaced or delayed; CheckpointError
/// on every rank when the file cannot be written.
void save_module(const Model& model, const std::string& path);

/// Takes the parameters and buffers of a file written by `save_module` or by `torch::save(net,
/// path)`; every rank reads the file and keeps what it holds of the model, which is all of it
/// before the partition. A model of delayed initialisation waits for that. Values are converted to
/// the model's types.
///
/// Collective over the world. Threads: step thread only.
/// Throws: CheckpointError on every rank when a rank cannot read the file, and, listing every name
/// and shape that does not fit, when it is another model's: in the first step where the model is
/// of delayed initialisation. The model is as it was then.
void load_module(const Model& model, const std::string& path);

} // namespace tessera
