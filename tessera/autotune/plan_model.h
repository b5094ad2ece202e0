#pragma once

#include <optional>
#include <string>

#include "tessera/autotune/trace_model.h"
#include "tessera/config/config.h"
#include "tessera/planner/search.h"

namespace tessera {

using Cluster = cost::Cluster;

/// How `plan` looks for strategies.
struct PlanOptions {
  std::string name = "the model"; // for explanations
  cost::Precision precision = cost::Precision::kFull; // of parameters and activations
  /// Prices the model with the activations of every layer recomputed.
  bool activation_checkpointing = false;
  /// cost::DescribedModel::optimizer_state_bytes.
  std::optional<double> optimizer_state_bytes = {};
  /// `runnable_only`, `constants` and, for up to 256 devices, `simulate` are ignored: the search
  /// always is for what this version of the library can run, with its constants.
  planner::SearchOptions search = {
      .most_stages_per_rank = planner::kMostStagesPerRank,
      .unlike_samples = true,
      .whole_layers = true};
};

/// How to train a model on a cluster: the best strategies, and why.
struct Planned {
  cost::DescribedModel model;
  Cluster cluster;
  planner::SearchResult found; // fastest first

  const planner::Candidate& best() const {
    return found.best.front();
  }
  /// Returns the configuration for `init`: `base` with every key that the strategy decides
  /// (degrees, microbatches, schedule, placement, partition). Throws: PlanError when this version
  /// of the library cannot run the strategy; ConfigError when `base` does not go together with it.
  config::Config config(const config::Config& base = {}) const;
  /// Returns the predicted seconds of one step.
  double step_seconds() const {
    return best().seconds();
  }
  /// Returns a text with a line for each of the best strategies, then the parts of the first one:
  /// seconds, and the memory of every stage.
  std::string explanation() const;
};

namespace autotune {

/// Sets `search` up for strategies that will be trained: only those that run, with the constants of
/// the runtime, and the best of them executed by the simulator.
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

/// Traces the model and searches the strategies for it. The result is the same on every rank and
/// machine for the same model, options and cluster.
/// Not collective. Threads: the calling thread.
/// Throws: ConfigError as `describe_model`; planner::NothingFits, PlanError as `planner::search`.
Planned plan_model(
    const ModelSource& source,
    int global_batch_size,
    const cost::Cluster& cluster,
    const PlanOptions& options);

} // namespace autotune
} // namespace tessera
