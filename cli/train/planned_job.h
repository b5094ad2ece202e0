#pragma once

#include <string>
#include <vector>

#include "tessera/config/config.h"
#include "tessera/cost/described_model.h"
#include "tessera/planner/candidate.h"

namespace tessera::cli {

/// The key of a job that a plan may decide beside those of `parallel`.
inline constexpr const char* kRecomputationKey = "activation_checkpointing";

/// A job's JSON text with `parallel` replaced and `strategy` left out.
std::string job_with_parallel(const std::string& job_json, const config::Config& parallel);

/// Returns the job with all that a strategy decides: its `parallel`, and how layers are recomputed
/// where the job does not say that itself.
/// Throws: PlanError when the strategy does not run; ConfigError when it does not go together with
/// the job's other keys.
std::string job_with_plan(
    const std::string& job_json,
    const planner::Candidate& candidate,
    const cost::DescribedModel& model);

/// Returns the keys of the job's `parallel` for which the strategy has another value.
/// Throws: PlanError when the strategy does not run; ConfigError for a job that cannot be read.
std::vector<std::string> replaced_by_plan(
    const std::string& job_json,
    const planner::Candidate& candidate,
    const cost::DescribedModel& model);

/// Returns the sdp_gradient_clipping that clips as `optimizer.clip_norm` does, of which 0 clips
/// nothing.
double sharded_clipping(double clip_norm);

/// Returns a job whose checkpoints are in this folder, so that `tessera train --resume` goes on
/// from them.
std::string job_resuming_from(const std::string& job_json, const std::string& directory);

} // namespace tessera::cli
