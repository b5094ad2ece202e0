#pragma once

#include <vector>

#include "tessera/cost/strategy.h"

namespace tessera::cost {

/// One stage of a pipeline whose stages have degrees of their own.
struct OwnStage {
  int first_layer = 0; // it runs [first_layer, last_layer)
  int last_layer = 0;
  TensorWay way = {1}; // how each replica of it is divided
  bool recomputes = true; // the activations of its layers
  /// Replica after replica, each with way.degree devices next to each other.
  std::vector<int> devices = {};
  /// The samples of one microbatch that each replica takes, 1 or more; replicas may differ.
  std::vector<int> samples = {};

  int replicas() const {
    return static_cast<int>(samples.size());
  }
};

/// A strategy whose stages have devices, degrees, shares of a microbatch and recomputation of their
/// own. All replicas of a stage work at one microbatch together; the next stage divides its samples
/// anew among its own replicas. Devices that no stage names are left out. The runtime of this
/// version does not execute it.
struct StagedStrategy {
  int microbatches = 1; // of a step; each is as large as the batch allows
  Schedule schedule = Schedule::kInterleaved; // in the fixed order (Strategy::active_microbatches)
  bool shard_optimizer_state = false; // among a stage's replicas
  std::vector<OwnStage> stages = {};
};

/// Returns what one stage would be as a whole strategy: for prices that depend on nothing else.
Strategy alone(const StagedStrategy& strategy, int stage);

/// Returns a uniform strategy in this form. Requires boundaries and a placement.
StagedStrategy staged(const Strategy& strategy, int global_batch_size);

/// Checks a strategy. Throws: ConfigError naming the stage when stages do not follow each other
/// over all layers, when a device is not there or is named twice, when devices are no whole number
/// of tensor-parallel groups, or when samples do not add up to a microbatch.
void validate(const StagedStrategy& strategy, int devices, int layers, int global_batch_size);

} // namespace tessera::cost
