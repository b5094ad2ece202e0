#pragma once

#include <cstdint>

#include "tessera/autotune/trace_model.h"

#include "models/presets.h"

namespace tessera::cli {

/// How a preset is run where it is planned for.
struct PresetRun {
  cost::Precision precision = cost::Precision::kFull;
  std::int64_t sequence = 0; // of a sample; 0: the preset's own
  int global_batch_size = 0;
};

/// "bf16", "fp16" or "f32", as jobs and the command line write it.
cost::Precision precision_of(const std::string& text);

/// Returns a preset with its loss as what planning traces; all of its modules are marked for tensor
/// parallelism, as they are in training.
autotune::ModelSource preset_source(const models::Preset& preset, std::int64_t sequence);

} // namespace tessera::cli
