#pragma once

#include <string>

#include "tessera/cost/cluster.h"
#include "tessera/cost/constants.h"
#include "tessera/cost/described_model.h"

namespace tessera::planner {

/// Prices every strategy of a CSV table and returns the same rows with the columns
/// `predicted_s` ("inf" when the strategy does not fit) and `memory_gib` (what the
/// fullest device needs) added, or replaced if the table has them. It reads the
/// columns pp, dp, tp, mbs and layer_boundaries ("[0;15;30]"), in any order, and
/// `placement` if there is one ("PDT" otherwise); all columns pass through.
///
/// Not collective.
/// Throws: ConfigError naming `origin`, the line and the column.
std::string price_table(
    const std::string& csv,
    const std::string& origin,
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const cost::Constants& constants = {});

} // namespace tessera::planner
