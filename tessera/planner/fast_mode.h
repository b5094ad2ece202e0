#pragma once

#include <optional>
#include <string>

#include "tessera/planner/search.h"

namespace tessera::planner {

/// Returns the seconds that the fastest strategy would take in fast mode, if it was searched
/// without it and would gain a tenth or more. Whether the model's calls are the same in every step,
/// which fast mode repeats, is the user's to say.
std::optional<double> fast_mode_seconds(
    const SearchResult& result,
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options);

/// Returns the line that says so; "" where there are none.
std::string fast_mode_hint(std::optional<double> seconds);

} // namespace tessera::planner
