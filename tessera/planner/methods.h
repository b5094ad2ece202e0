#pragma once

// Private to the planner: the search methods. All are deterministic for a given seed.

#include <functional>
#include <vector>

#include "tessera/planner/best.h"
#include "tessera/planner/candidate.h"
#include "tessera/planner/search_options.h"
#include "tessera/planner/space.h"

namespace tessera::planner {

/// Prices every point of the space whose lower bound could still be among the best,
/// each with its best placement and layer assignment. Returns only what fits.
/// Source: Li et al. 2022, section 3.6.
SearchResult
amp(const cost::DescribedModel& model, const cost::Cluster& cluster, const SearchOptions& options);

/// Does the same for the points that `asked` wants, beside what `best` holds already. Lowers
/// SearchResult::lower_bound to theirs and counts what is considered; `result.best` stays as it is.
void amp_into(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options,
    const std::function<bool(const Point&)>& asked,
    Best& best,
    SearchResult& result);

/// Return baselines with as many layers or parameters in each stage and devices in the order of the
/// file: for each microbatch size the least tp x pp that fits (section 4.1); or all that fit.
std::vector<Candidate> megatron_heuristics(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options);
std::vector<Candidate> uniform_strategies(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options);
/// Returns random strategies, whether they fit or not (section 4.5).
std::vector<Candidate> random_strategies(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options);

/// Improves the placement of the first three of `start` by simulated annealing and
/// returns those that became faster (section 4.2). Devices are swapped, or with
/// SearchOptions::runnable_only whole nodes, since the runtime takes no other placement.
std::vector<Candidate> annealed(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options,
    const std::vector<Candidate>& start);

} // namespace tessera::planner
