#pragma once

// Private to this folder: which of several plans comes first that a probe does not tell apart.

#include <vector>

#include "tessera/cost/cluster.h"
#include "tessera/cost/described_model.h"
#include "tessera/planner/candidate.h"

namespace tessera::planner {

/// Predicted seconds that differ by less than this share are the same where a probe measured the
/// cluster: planned on twenty probes of one machine, seconds of one strategy over those of another
/// spread by 1.8 % (standard deviation; bench/results/probes_2core_2026-11-29.md).
inline constexpr double kToldApart = 0.03;

/// Moves to the front the simplest of the candidates, which are sorted fastest first, that take at
/// most kToldApart longer than the first: the one with the smallest tensor-parallel degree, of
/// those the one with the fewest pipeline ranks, then the fewest stages a rank, then the fastest.
/// What the runtime does not execute is not moved before what it does. Does nothing for a cluster
/// without a probe, whose seconds do not change from one reading to the next.
/// Returns whether another one than the fastest is the first.
bool prefer_simplest(
    std::vector<Candidate>& best,
    const cost::DescribedModel& model,
    const cost::Cluster& cluster);

} // namespace tessera::planner
