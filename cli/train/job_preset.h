#pragma once

#include "cli/plan/preset_source.h"
#include "cli/train/job.h"

namespace tessera::cli {

/// The model of a job with the sizes that follow from its data: vocabulary and
/// longest sequence, unless the job says them.
/// Throws: ConfigError when the data cannot be read, or are larger than the
/// sizes that the job says.
models::Preset preset_of(const Job& job);

/// The same for data of `vocabulary` tokens; 0: of data that are not known.
/// Throws: ConfigError that names the nearest model or option, heads that do
/// not divide the width, a family that is not trained, sizes below the data's.
models::Preset preset_of(const Job& job, std::int64_t vocabulary);

/// Precision, sequence and batch of a job.
PresetRun run_of(const Job& job);

} // namespace tessera::cli
