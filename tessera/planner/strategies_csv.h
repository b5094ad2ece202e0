#pragma once

#include <string>

#include "tessera/cost/cluster.h"
#include "tessera/cost/constants.h"
#include "tessera/cost/described_model.h"

namespace tessera::planner {

/// Prices every strategy of a table. The columns pp, dp, tp, mbs and
/// layer_boundaries ("[0;15;30]") are read, in any order; all columns pass
/// through, then `predicted_s` ("inf" when it does not fit the devices) and
/// `memory_gib` (what the fullest device needs) are added, or replaced where
/// the table has them. A column `placement` gives the letters of a row's
/// placement, "PDT" otherwise.
///
/// Returns: the same rows as CSV.
/// Throws: ConfigError naming `origin`, the line and the column.
std::string price_table(
    const std::string& csv,
    const std::string& origin,
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const cost::Constants& constants = {});

} // namespace tessera::planner
