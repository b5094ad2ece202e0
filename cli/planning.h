#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "tessera/planner/search.h"

namespace tessera::cli {

/// Options that plan and simulate share: which model, which cluster, how to
/// search.
struct PlanningInput {
  std::string model_file;
  std::string cluster_file;
  int global_batch_size = 0; // 0: the model file's
  planner::SearchOptions search = {};
};

void add_planning_options(CLI::App& app, PlanningInput& input);

/// Throws: ConfigError that names the missing option, or as the readers.
cost::DescribedModel model_of(const PlanningInput& input);
/// Also says on standard error what is left out of the estimate.
cost::Cluster cluster_of(const PlanningInput& input);

/// A search with a progress bar on a terminal; the first interruption (Ctrl-C)
/// ends it with the best so far.
planner::SearchResult search_with_progress(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    planner::SearchOptions options);

/// Throws: ConfigError when the file cannot be written.
void write_text_file(const std::string& path, const std::string& text);

} // namespace tessera::cli
