#pragma once

#include <string>
#include <vector>

#include "tessera/graph/model_graph.h"
#include "tessera/partition/partition.h"

namespace tessera::model {

/// Lines for people on the modules that cannot live on a rank of their own: which, with what share
/// of the parameters, why, and what to write; modules that are alike share a line.
///   12 modules of type MultiheadAttention (18.4 % of the parameters), first 'layers.0.attention':
///   ...
std::vector<std::string> notes_on_kept_modules(const graph::ModelGraph& graph);

/// "rank 0 holds 25.0 % of the parameters, rank 1 75.0 %": of what each pipeline rank will own.
std::string
shares_of_ranks(const graph::ModelGraph& graph, const partitioning::Result& result, int partitions);

/// "rank 0: the model itself, a, layers.0 to layers.3; rank 1: layers.4, layers.5": where each
/// module runs. A module stands for all inside it that is on its rank.
std::string places_of_modules(
    const graph::ModelGraph& graph,
    const partitioning::Result& result,
    int partitions);

/// Throws: PlanError when a pipeline rank would own no parameter although the model has some; the
/// text holds the notes.
void check_every_rank_owns_parameters(
    const graph::ModelGraph& graph,
    const partitioning::Result& result,
    int partitions);

} // namespace tessera::model
