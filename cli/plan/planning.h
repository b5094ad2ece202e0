#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "tessera/planner/search.h"

namespace tessera::cli {

/// Options that plan and simulate share: which model, which cluster, how to
/// search.
struct PlanningInput {
  std::string model_file;
  std::string preset; // in place of model_file
  std::string job_file; // a job whose model, batch and precision are planned
  std::string precision; // of a preset; "": f32, or the job's
  std::int64_t sequence = 0; // of a preset's sample; 0: its own, or the job's
  bool activation_checkpointing = false; // of a preset
  std::string cluster_file;
  std::vector<std::string> without; // hosts of it that are gone
  bool writes_job = false; // whose keys say what is recomputed
  bool own_widths = false; // of stages: priced and listed, never written
  int global_batch_size = 0; // 0: the model file's or the job's
  std::string method = "amp"; // name of a planner::Method
  std::string schedule = "interleaved"; // or "any"
  std::string save_memory; // "needed" or "compare"; "": needed where the strategy must run
  std::string objective = "time";
  std::uint64_t memory_limit = 0; // bytes; 0: none
  /// All else of the search.
  planner::SearchOptions search = {
      .most_stages_per_rank = planner::kMostStagesPerRank,
      .unlike_samples = true,
      .whole_layers = true};
};

void add_planning_options(CLI::App& app, PlanningInput& input);

/// Returns the model that the options describe. Throws: ConfigError that names the missing option,
/// or what the readers of its file throw.
cost::DescribedModel model_of(const PlanningInput& input, const cost::Cluster& cluster);
/// Returns the cluster that the options describe, and prints on standard error what its file leaves
/// out of the estimate.
cost::Cluster cluster_of(const PlanningInput& input);

/// Returns the options of the search that suits the model: a traced model is planned for strategies
/// that this version runs, with the times that they take here.
planner::SearchOptions search_options(
    const PlanningInput& input,
    const cost::DescribedModel& model,
    const cost::Cluster& cluster);

/// A search with a progress bar on a terminal; the first interruption (Ctrl-C)
/// ends it with the best so far.
/// Throws: as planner::search, with the options that would help.
planner::SearchResult search_with_progress(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    planner::SearchOptions options);

} // namespace tessera::cli
