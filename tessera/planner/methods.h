#pragma once

// Private to the planner: the ways to find strategies.

#include <vector>

#include "tessera/planner/candidate.h"
#include "tessera/planner/search_options.h"

namespace tessera::planner {

/// Every point of the space that could be among the best, each under its best
/// placement and layer assignment; only what fits.
/// Source: Li et al. 2022, section 3.6.
SearchResult
amp(const cost::DescribedModel& model, const cost::Cluster& cluster, const SearchOptions& options);

/// Baselines of sections 4.1 and 4.5; also what does not fit.
std::vector<Candidate> megatron_heuristics(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options);
std::vector<Candidate> random_strategies(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options);

/// Simulated annealing of the placement from each of `start` (section 4.2).
std::vector<Candidate> annealed(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options,
    const std::vector<Candidate>& start);

} // namespace tessera::planner
