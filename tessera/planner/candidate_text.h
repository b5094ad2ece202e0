#pragma once

#include <string>

#include "tessera/planner/candidate.h"

namespace tessera::planner {

/// Returns the tensor-parallel degree and kind: "tp 2 speed, prescaled batch".
std::string tensor_text(const cost::Strategy& strategy);
/// Returns degrees, microbatch size, placement and what is sharded in one line.
std::string headline(const cost::Strategy& strategy);

/// Returns the parts of an estimate, and the memory of each stage, as text for people.
std::string explain(
    const Candidate& candidate,
    const cost::DescribedModel& model,
    const cost::Cluster& cluster);

/// Returns a table with one line for each candidate, which says so where the runtime of this
/// version cannot train with it, and how far the first one is from the lower bound at most.
std::string summary(const SearchResult& result, const cost::DescribedModel& model);

/// Returns one line for each strategy of the front: seconds, price and joules of a step; "" where
/// neither prices nor watts are known.
std::string front_text(const SearchResult& result, const cost::Cluster& cluster);

} // namespace tessera::planner
