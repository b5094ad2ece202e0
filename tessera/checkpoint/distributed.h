#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include <torch/optim/optimizer.h>

#include "tessera/checkpoint/options.h"
#include "tessera/checkpoint/reader.h"
#include "tessera/context/context.h"
#include "tessera/sharding/divided_parameters.h"
#include "tessera/state/layout.h"

/// Checkpoints that all ranks of a world write and read together. Threads: step thread only.
namespace tessera::checkpoint {

/// A partitioned model and its optimizer, as this rank holds them.
struct Subject {
  std::string model; // its name
  std::map<std::string, int> partition; // module path -> pp rank
  const state::StateLayout* layout = nullptr;
  /// Each parameter as the optimizer updates it: 16-bit parameters are saved as their f32 masters.
  NamedTensors parameters;
  NamedTensors buffers;
  torch::optim::Optimizer* optimizer = nullptr; // none: the model alone
  /// To save; state and parameters are whole on ranks of rdp_rank 0, which alone write them, or
  /// `all_write`: every rank writes what it has here.
  state::OptimizerState state = {};
  bool all_write = false;
  /// What a loss scaler keeps, as JSON, the same on all ranks; "": there is none.
  std::string fp16_states = {};
  /// Of parameters that ranks hold together; `parameters` has their parts. May be nullptr.
  const sharding::DividedParameters* divided = nullptr;
};

/// Writes `<directory>/<tag>/`; `steps` is the number of steps done. Collective over the world.
/// Throws: CheckpointError on every rank, naming the rank and file that failed.
Saved save(
    Context& context,
    const Subject& subject,
    std::int64_t steps,
    const std::string& directory,
    const std::string& tag,
    const SaveOptions& options);

/// A checkpoint that rank 0 chose and every rank has open.
struct Opened {
  std::shared_ptr<Checkpoint> from;
  std::int64_t steps = 0;
  std::string fp16_states; // Subject::fp16_states
  Loaded loaded;
};

/// Opens a checkpoint; nullopt when the folder holds none. Collective over the world.
/// Throws: CheckpointError on every rank for a torn checkpoint, or one of another program.
std::optional<Opened>
open(Context& context, const std::string& directory, const LoadOptions& options);

/// Loads the checkpoint's values into this rank's parameters and buffers. Not collective.
/// Throws: CheckpointError that lists all names and shapes that do not fit.
void load_model(const Subject& subject, const Checkpoint& from);
/// Loads what fits, a distributed module as a whole or not at all, and returns a line for each of
/// the others. Not collective. Throws: CheckpointError for damaged files.
std::set<std::string> load_fitting(const Subject& subject, const Checkpoint& from);
/// Loads the optimizer's state in the same way. Not collective.
void load_optimizer(const Subject& subject, const Checkpoint& from);
/// Restores this rank's random state, if the checkpoint was written under the same layout of ranks.
/// Not collective.
void load_random_state(const Context& context, const Checkpoint& from);

} // namespace tessera::checkpoint
