#pragma once

#include <vector>

#include "tessera/planner/candidate.h"
#include "tessera/planner/search_options.h"

namespace tessera::planner {

/// Adds to `best` strategies whose replicas are on unlike devices and take unlike numbers of
/// samples (cost::Strategy::replica_microbatch): of the points with several replicas that could be
/// fastest, each with its best placement and one strategy at most. A microbatch's samples are given
/// out one after the other, to the replica that has then done first and whose memory holds it, so
/// that all have done at about the same time. The strategies that are there stay; what is not
/// faster than the fastest of them by a little is left out.
///
/// Adds nothing on devices of one kind, on more than 256 devices, without
/// SearchOptions::unlike_samples, or for the methods megatron and random. Boundaries of stages are
/// those of the same strategy with equal replicas where it fits, else even ones.
///
/// Cost: some pricings of 32 points.
/// Source: Jia et al. 2022, Whale, section 3.3.1 (samples in proportion to speeds, moved where
/// memory is short); Um et al. 2024, Metis, section 3.3.
void add_unlike_replicas(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options,
    std::vector<Candidate>& best);

} // namespace tessera::planner
