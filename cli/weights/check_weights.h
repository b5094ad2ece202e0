#pragma once

#include "cli/weights/weights.h"

namespace tessera::cli {

/// Compares the names and shapes of weights with a model's; no number is read. Threads: any. Not
/// collective. Throws: CheckpointError that lists what is missing, unexpected or of another shape.
void check_weights(const Weights& weights, const models::Preset& preset);

/// Checks that a job of this model can go on from the newest whole checkpoint in `from`, and
/// returns a line that says from which one and how it was laid out. Any layout of ranks loads it,
/// since a checkpoint holds every tensor by name. Throws: ConfigError when there is no checkpoint
/// or it has no optimizer; as check_weights.
std::string check_resumable(const std::string& from, const models::Preset& preset);

} // namespace tessera::cli
