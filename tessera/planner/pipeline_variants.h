#pragma once

#include <vector>

#include "tessera/planner/candidate.h"
#include "tessera/planner/search_options.h"

namespace tessera::planner {

/// Adds, for the best of `best` that have a pipeline, how they would run with several stages a
/// pipeline rank in turns (SearchOptions::most_stages_per_rank), or with more microbatches in
/// flight, up to two for each pipeline rank, since turns and slow links need them, wherever the
/// simulator finds that faster; in fast mode also with the layers
/// that stages would have without it; without turns a number that was asked for
/// (SearchOptions::active_microbatches) stays. Each strategy adds its fastest such variant at most,
/// with its degrees and its placement. Requires simulated candidates. The strategies that are there
/// stay, and variants that do not fit, or part layers that must stay together, are left out
/// (decision 138).
///
/// Cost: some simulations of each of eight strategies.
void add_pipeline_variants(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options,
    std::vector<Candidate>& best);

} // namespace tessera::planner
