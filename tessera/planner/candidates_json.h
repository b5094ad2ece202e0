#pragma once

#include <optional>
#include <string>

#include "tessera/planner/candidate.h"

namespace tessera::planner {

/// Returns the strategies of a search for programs: one object with `model`, `cluster`,
/// `global_batch_size`, `considered`, `interrupted`, `lower_bound_seconds`, which is one of equal
/// replicas, `first_in_fast_mode_seconds` if `in_fast_mode` (fast_mode_seconds) is given, and the
/// lists `strategies`, fastest first, and `front`.
/// docs/planner.md lists the fields. Units: seconds and bytes.
std::string to_json(
    const SearchResult& result,
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    std::optional<double> in_fast_mode = std::nullopt);

} // namespace tessera::planner
