#pragma once

#include "cli/preset_model.h"
#include "cli/train/job.h"

namespace tessera::cli {

/// The model of a job with the sizes that follow from its data: vocabulary and
/// longest sequence, unless the job says them.
/// Throws: ConfigError when the data cannot be read, or are larger than the
/// sizes that the job says.
models::Preset preset_of(const Job& job);

/// Precision, sequence and batch of a job.
PresetRun run_of(const Job& job);

} // namespace tessera::cli
