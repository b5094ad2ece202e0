#pragma once

#include <string>

#include "tessera/autotune/trace_model.h"
#include "tessera/config/config.h"
#include "tessera/planner/search.h"

namespace tessera {

using Cluster = cost::Cluster;

/// How `plan` looks for strategies.
struct PlanOptions {
  std::string name = "the model"; // in explanations
  cost::Precision precision = cost::Precision::kFull; // of parameters and activations
  /// Price it with the activations of every layer recomputed.
  bool activation_checkpointing = false;
  /// What this version of the library can run is searched, with its constants, whatever is said
  /// here.
  planner::SearchOptions search = {};
};

/// How to train a model on a cluster: the best strategies, and why.
struct Planned {
  cost::DescribedModel model;
  Cluster cluster;
  planner::SearchResult found; // fastest first

  const planner::Candidate& best() const {
    return found.best.front();
  }
  /// Returns `base` with every key that the strategy decides (degrees, microbatches, schedule,
  /// placement, partition): what `init` is given.
  /// Throws: PlanError when this version of the library cannot run the strategy; ConfigError when
  /// `base` does not go together with it.
  config::Config config(const config::Config& base = {}) const;
  /// Predicted seconds of one step.
  double step_seconds() const {
    return best().seconds();
  }
  /// A line for each of the best strategies, then the parts of the first: seconds, and the memory
  /// of every stage.
  std::string explanation() const;
};

namespace autotune {

/// Sets the search up for what will be trained: only what runs, with the constants of the runtime,
/// the best executed by the simulator.
void search_what_runs(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    planner::SearchOptions& search);

/// Returns the model as the planner prices it, traced whole and in every way that tensor
/// parallelism can divide it on the cluster. Not collective. Threads: the calling thread. Throws:
/// ConfigError as `trace_model`, and when the cluster names a device without measured speed.
cost::DescribedModel describe_model(
    const ModelSource& source,
    int global_batch_size,
    cost::Precision precision,
    const cost::Cluster& cluster);

/// Traces the model and searches the strategies for it. The same on every rank and machine for the
/// same model, options and cluster.
/// Not collective. Threads: the calling thread.
/// Throws: ConfigError as `describe_model`; planner::NothingFits, PlanError as `planner::search`.
Planned plan_model(
    const ModelSource& source,
    int global_batch_size,
    const cost::Cluster& cluster,
    const PlanOptions& options);

} // namespace autotune
} // namespace tessera
