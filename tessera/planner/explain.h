#pragma once

#include <string>

#include "tessera/planner/candidate.h"

namespace tessera::planner {

/// "tp 2 speed, prescaled batch"
std::string tensor_text(const cost::Strategy& strategy);
/// Degrees, microbatch size and placement in one line.
std::string headline(const cost::Strategy& strategy);

/// The parts of an estimate, stage by stage, as text for people.
std::string explain(
    const Candidate& candidate,
    const cost::DescribedModel& model,
    const cost::Cluster& cluster);

/// One line for each candidate.
std::string summary(const SearchResult& result);

} // namespace tessera::planner
