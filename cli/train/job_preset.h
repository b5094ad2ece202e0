#pragma once

#include <memory>

#include "tessera/planner/search_options.h"

#include "cli/train/job.h"
#include "cli/train/preset_source.h"
#include "cli/weights/weights.h"
#include "models/objectives/objective.h"

namespace tessera::cli {

/// How messages call the key that needs to know where documents begin.
constexpr const char* kResetAttentionMaskKey = "'data.reset_attention_mask'";

/// A job's model and what it learns.
struct JobModel {
  models::Preset preset;
  std::shared_ptr<const models::Objective> objective;
};

/// The model of a job with the options that follow from its data, vocabulary and longest sequence
/// among them, unless the job says them.
/// Throws: ConfigError when the data cannot be read, or are larger than the
/// sizes that the job says.
JobModel job_model(const Job& job);

/// The same for data of these tokens; of 0: of data that are not known, and without an objective.
/// Throws: ConfigError that names the nearest model or option, heads that do
/// not divide the width, a family that is not trained, sizes below the data's.
JobModel job_model(const Job& job, const models::TokenTable& table);

/// The model alone.
models::Preset preset_of(const Job& job);

/// Whether a job's data have the tokenizer of the weights that it begins with. Returns the warning
/// of a job that asks for another one (model.other_tokenizer), "" when there is nothing to say.
/// Throws: ConfigError that names both folders and both hashes.
std::string check_tokenizer(const Job& job, const Weights& weights);

/// Bytes of the optimizer's state for one parameter of a large tensor, f32 masters included.
double state_bytes_per_parameter(const Job& job);

/// Sets what a job says of recomputation, offloading and memory, and whether a plan may recompute.
void follow_job(const Job& job, const cost::Cluster& cluster, planner::SearchOptions& search);

/// Precision, sequence and batch of a job.
PresetRun run_of(const Job& job);

} // namespace tessera::cli
