#pragma once

#include "tessera/planner/candidate.h"
#include "tessera/planner/search_options.h"

namespace tessera::planner {

/// Finds the best strategies to train `model` on `cluster`. Equal input gives equal
/// answers; an interrupted search returns the best so far. Not collective.
/// Throws: ConfigError for a model that was not measured on a device of the
/// cluster; NothingFits; PlanError when no degrees make up the cluster.
SearchResult search(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options);

} // namespace tessera::planner
