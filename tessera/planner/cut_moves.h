#pragma once

#include <vector>

#include "tessera/planner/candidate.h"
#include "tessera/planner/search_options.h"

namespace tessera::planner {

/// Moves the cuts of the fastest pipelines of `best` by single layers, one cut or neighbouring ones
/// together, as long as the simulator finds an iteration faster by one in a hundred; then each of
/// them goes on from the cuts of the others where these are faster. Layers are assigned by an
/// estimate that counts a message between stages once an iteration, so what a slow link or large
/// messages cost in every microbatch shows in the simulator alone. Requires simulated candidates.
/// Moves that do not fit, or part layers that must stay together, are left out.
///
/// Cost: at most 400 simulations of each of five strategies, fewer where they are long.
void move_cuts(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options,
    std::vector<Candidate>& best);

/// Returns the strategy as `move_cuts` would leave it in a search; unchanged where the search
/// simulates nothing (SearchOptions::simulate).
Candidate with_moved_cuts(
    Candidate candidate,
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options);

} // namespace tessera::planner
