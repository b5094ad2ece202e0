#pragma once

#include "tessera/tessera.h"

#include "cli/weights/weights.h"
#include "models/registry.h"

namespace tessera::cli {

/// Gives a model the weights: now, or right after its partition. Every rank reads the part that it
/// owns. `whole` is what the model was made of. Collective over the world. Threads: step thread.
/// Throws: CheckpointError that names what does not fit.
void start_from(const Weights& weights, const models::AnyModel& whole, const Model& model);

} // namespace tessera::cli
