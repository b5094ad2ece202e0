#pragma once

#include <string>

#include "models/presets.h"

namespace tessera::cli {

/// Writes `folder`/config.json beside the weights of a checkpoint, in the form
/// that `tessera generate` and transformers read; end and begin of a text are
/// those of the tokenizer in `data`, where there is one.
/// Not collective: rank 0 does it for all. Threads: the main thread.
/// Throws: ConfigError when it cannot be written.
void write_model_config(
    const std::string& folder,
    const models::Preset& preset,
    const std::string& data);

} // namespace tessera::cli
