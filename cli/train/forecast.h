#pragma once

#include <string>
#include <vector>

#include "tessera/cost/cluster.h"
#include "tessera/planner/traced_model.h"
#include "tessera/topology/rank_layout.h"

#include "cli/train/job.h"
#include "models/presets.h"

namespace tessera::cli {

/// Bytes that a rank of one pipeline stage holds in training.
struct StageBytes {
  double parameters = 0;
  double gradients = 0;
  double optimizer = 0; // moments, and f32 masters of 16-bit parameters
  double activations = 0; // of all microbatches between forward and backward

  double total() const {
    return parameters + gradients + optimizer + activations;
  }
};

/// A job's model as the runtime would divide it under the job's layout.
struct Forecast {
  planner::ModelTrace traced;
  std::vector<int> stage_of_module; // of the graph that was divided
  std::vector<StageBytes> stages; // one a pipeline rank
  std::vector<std::string> warnings; // of the partition
};

/// Traces the model without its weights and divides it as the first step would.
///
/// Parameters, gradients and the optimizer's state follow from the shapes; with divided parameters
/// gradients include the buckets of a step.
/// Activations are the results of the operators that grow with the batch, once
/// for each microbatch in flight: what a backward reads is among them, and some
/// that is not, so it is an upper estimate.
/// Not collective: needs neither MPI nor a session.
/// Throws: ConfigError as partitioning::partition.
Forecast forecast(const Job& job, const models::Preset& preset, const topology::Degrees& degrees);

/// Seconds of one step of the job on a cluster, executed event by event.
/// Throws: ConfigError or PlanError that say why it cannot be told: a cluster of
/// other devices than the job has ranks, a partition that is no pipeline of the
/// model's layers.
double step_seconds(
    const Job& job,
    const Forecast& forecast,
    const topology::Degrees& degrees,
    const cost::Cluster& cluster);

} // namespace tessera::cli
