#pragma once

#include <vector>

#include "tessera/planner/candidate.h"
#include "tessera/planner/search_options.h"

namespace tessera::planner {

/// Adds, for the best of `best` that divide layers among tensor-parallel ranks with samples of
/// their own, how they would run with some layers whole (cost::Strategy::whole_layers): a whole
/// layer takes more memory and exchanges nothing. So stages get degrees of their own, 1 or the
/// strategy's, and a stage whose devices hold only a part of its layers whole divides the others.
/// Each strategy adds its fastest such variant at most, where that is faster than all that are
/// there, which stay.
///
/// Of each stage, the slowest first, as many layers become whole as its devices hold, if the step
/// is faster then: the last ones, or those with which alone it is faster, the one first that gains
/// most for each byte. At the end layers are assigned to stages anew. This is good and not proved
/// to be the optimum. Does nothing without SearchOptions::whole_layers, on meshes, for a model that
/// was not traced, or replaced as a whole, and for the methods megatron and random.
///
/// Cost: some pricings of each of eight strategies.
/// Source: Miao et al. 2022, Galvatron (a strategy for each layer under a memory limit).
void add_whole_layers(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const SearchOptions& options,
    std::vector<Candidate>& best);

} // namespace tessera::planner
