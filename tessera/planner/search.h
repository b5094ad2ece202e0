#pragma once

#include "tessera/planner/candidate.h"
#include "tessera/planner/search_options.h"

namespace tessera::planner {

/// Throws: ConfigError for a model that was not measured on a device of the
/// cluster. NothingFits, which names the nearest strategy, how much memory it
/// lacks, and what would make it fit; PlanError when the degrees do not make up
/// the cluster.
SearchResult search(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options);

} // namespace tessera::planner
