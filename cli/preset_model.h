#pragma once

#include <cstdint>
#include <string>

#include "tessera/planner/traced_model.h"

#include "models/presets.h"

namespace tessera::cli {

/// How a preset is run where it is planned for.
struct PresetRun {
  std::string precision = "f32"; // or "bf16"
  std::int64_t sequence = 0; // of a sample; 0: the preset's own
  int global_batch_size = 0;
};

/// Traces a preset with its loss for one sample and for two, without allocating
/// its weights.
/// Throws: ConfigError.
planner::TracedModel trace_preset(
    const models::Preset& preset,
    const PresetRun& run);

} // namespace tessera::cli
