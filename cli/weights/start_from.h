#pragma once

#include <optional>

#include "tessera/tessera.h"

#include "cli/weights/weights.h"
#include "models/registry.h"

namespace tessera::cli {

/// Parameters that a model begins with, in two steps: before the model is divided, its own names
/// and shapes are beside those of the weights; after that each rank reads the part that it owns.
/// Threads: step thread.
class StartingPoint {
 public:
  /// `whole` is not yet part of a Model. Not collective.
  /// Throws: CheckpointError that names what does not fit.
  StartingPoint(Weights weights, const models::AnyModel& whole);

  /// Gives the model its parameters: now, or right after its partition. Collective over the world.
  /// Throws: CheckpointError that names what does not fit.
  void load_into(const Model& model);

  const std::string& path() const {
    return weights_.path();
  }

 private:
  Weights weights_;
  TensorMap state_; // empty for a checkpoint, which is read by slices
};

} // namespace tessera::cli
