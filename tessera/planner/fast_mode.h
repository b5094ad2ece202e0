#pragma once

#include <string>

#include "tessera/planner/search.h"

namespace tessera::planner {

/// Returns the line that says what fast mode would make of the fastest strategy, if that was
/// searched without it and would gain a tenth or more; "" otherwise. Whether the model's calls are
/// the same in every step, which fast mode repeats, is the user's to say.
std::string fast_mode_hint(
    const SearchResult& result,
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options);

} // namespace tessera::planner
