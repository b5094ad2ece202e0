#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "tessera/checkpoint/options.h"
#include "tessera/checkpoint/reader.h"
#include "tessera/checkpoint/subject.h"
#include "tessera/context/context.h"

/// Checkpoints that all ranks of a world read together; pending_save.h writes them. Threads: step
/// thread only.
namespace tessera::checkpoint {

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
/// What LoadOptions::translate_function has made of all of a checkpoint's values: this rank's of
/// them, by parts of the layout, and a line for each that does not fit.
struct Translated {
  std::vector<TensorMap> parts;
  std::set<std::string> unfit;
};
/// Not collective. Throws: CheckpointError for damaged files, and what the function throws.
Translated translate(const Subject& subject, const Checkpoint& from, const LoadOptions& options);
/// Loads what fits, a distributed module as a whole or not at all. Not collective.
void load_translated(const Subject& subject, const Translated& translated);
/// What of an optimizer is loaded: the options of its groups (learning rates and the like), the
/// state of its parameters, or both.
enum class OptimizerPart { kAll, kOptions, kStates };
/// Loads the optimizer in the same way. Not collective.
void load_optimizer(
    const Subject& subject,
    const Checkpoint& from,
    OptimizerPart which = OptimizerPart::kAll);
/// Restores this rank's random state, if the checkpoint was written under the same layout of ranks.
/// Not collective.
void load_random_state(const Context& context, const Checkpoint& from);

} // namespace tessera::checkpoint
