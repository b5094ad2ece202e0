#pragma once

// The strategy of a row of a table of strategies, for programs and tests that simulate what the
// table prices. Header only.

#include <numeric>
#include <sstream>
#include <string>
#include <vector>

#include "tessera/planner/strategies_csv.h"

namespace tessera::bench {

/// Returns the numbers of a cell such as "[0;15;30]".
inline std::vector<int> boundaries_of(const std::string& cell) {
  std::vector<int> boundaries;
  std::istringstream in(cell);
  for (char mark = 0; in >> mark && mark != ']';) {
    int boundary = 0;
    in >> boundary;
    boundaries.push_back(boundary);
  }
  return boundaries;
}

/// Returns the strategy that planner::price_rows prices for a row that has neither a placement nor
/// a sequence nor a batch of its own.
inline cost::Strategy strategy_of(
    const planner::PricedTable& table,
    const planner::PricedRow& row,
    const cost::DescribedModel& model) {
  cost::Strategy strategy;
  strategy.pp = std::stoi(table.cell(row, "pp"));
  strategy.dp = std::stoi(table.cell(row, "dp"));
  strategy.tp = std::stoi(table.cell(row, "tp"));
  strategy.microbatch_size = std::stoi(table.cell(row, "mbs"));
  strategy.boundaries = boundaries_of(table.cell(row, "layer_boundaries"));
  strategy.activation_checkpointing = model.activation_checkpointing;
  strategy.shard_optimizer_state = table.cell(row, "zero") == "1";
  std::vector<int> order(static_cast<std::size_t>(strategy.devices()));
  std::iota(order.begin(), order.end(), 0);
  strategy.device_of_rank = cost::lay_out(strategy, strategy.placement, order);
  return strategy;
}

} // namespace tessera::bench
