#pragma once

#include <string>

#include "tessera/config/config.h"

namespace tessera::cli {

/// A job's JSON text with `parallel` replaced and `strategy` left out.
std::string job_with_parallel(const std::string& job_json, const config::Config& parallel);

/// Returns the sdp_gradient_clipping that clips as `optimizer.clip_norm` does, of which 0 clips
/// nothing.
double sharded_clipping(double clip_norm);

/// Returns a job whose checkpoints are in this folder, so that `tessera train --resume` goes on
/// from them.
std::string job_resuming_from(const std::string& job_json, const std::string& directory);

} // namespace tessera::cli
