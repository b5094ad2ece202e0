#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/planner/traced_model.h"

#include "models/presets.h"

namespace tessera::cli {

/// How a preset is run where it is planned for.
struct PresetRun {
  std::string precision = "f32"; // or "bf16"
  std::int64_t sequence = 0; // of a sample; 0: the preset's own
  int global_batch_size = 0;
  /// Tensor-parallel degrees that it is also traced at, in every way that the
  /// runtime can divide it.
  std::vector<int> tensor_degrees = {};
};

/// Degrees of tensor parallelism that divide the devices: up to those of the
/// largest node, since its traffic is too much for a network, and on clusters
/// of a few devices up to all of them.
std::vector<int> tensor_degrees_of(const cost::Cluster& cluster);

/// Traces a preset with its loss for one sample and for two, without allocating
/// its weights.
/// Throws: ConfigError.
planner::TracedModel trace_preset(const models::Preset& preset, const PresetRun& run);

} // namespace tessera::cli
