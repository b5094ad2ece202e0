#pragma once

// Private to the planner: strategies that leave nodes out.

#include <vector>

#include "tessera/planner/candidate.h"
#include "tessera/planner/search_options.h"

namespace tessera::planner {

/// Returns the sets of nodes to search, each ascending, largest first: with few nodes all of them,
/// else those that are left when the slowest, or the ones with the slowest links, are left out one
/// after the other. Sets of nodes that are alike, without links of their own, appear once. All
/// leave out SearchOptions::spare_nodes or more. Throws: ConfigError when so many spares leave no
/// node.
std::vector<std::vector<int>> node_sets(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options);

/// Returns the cluster of these nodes alone, with the links and collectives between them.
cost::Cluster part_of(const cost::Cluster& cluster, const std::vector<int>& nodes);

/// Names the nodes and devices of a strategy for `part_of(cluster, nodes)` as `cluster` does.
void name_in_whole(
    Candidate& candidate,
    const cost::Cluster& cluster,
    const std::vector<int>& nodes);

} // namespace tessera::planner
