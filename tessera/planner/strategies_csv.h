#pragma once

#include <string>
#include <vector>

#include "tessera/cost/cluster.h"
#include "tessera/cost/constants.h"
#include "tessera/cost/described_model.h"
#include "tessera/cost/strategy_cost.h"

namespace tessera::planner {

/// A row of a table of strategies, priced.
struct PricedRow {
  std::vector<std::string> cells; // as they stand in the table
  /// Whether every stage has a layer; the other members are empty if not.
  bool runs = true;
  cost::StrategyCost cost = {};
  int microbatches = 0;

  /// Returns the estimated seconds, infinite for what does not run or does not fit.
  double seconds() const;
};

/// A table of strategies with its column names.
struct PricedTable {
  std::vector<std::string> names;
  std::vector<PricedRow> rows;

  /// Returns a cell without quotes; "" in a table without the column.
  std::string cell(const PricedRow& row, const std::string& name) const;
};

/// Prices every strategy of a CSV table. It reads the columns of price_table.
/// Not collective. Throws: ConfigError naming `origin`, the line and the column.
PricedTable price_rows(
    const std::string& csv,
    const std::string& origin,
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const cost::Constants& constants = {});

/// Prices every strategy of a CSV table and returns the same rows with the columns
/// `predicted_s` ("inf" when the strategy does not fit) and `memory_gib` (what the
/// fullest device needs) added, or replaced if the table has them. It reads the
/// columns pp, dp, tp, mbs and layer_boundaries ("[0;15;30]"; a stage without layers does not
/// run), in any order, and if they are there: `placement` ("PDT" otherwise), `global_batch`
/// (samples; else the model's), `nodes` (of the cluster, the first so many; else all), `zero`
/// (0: nothing is divided among replicas; 1: the optimizer's state; 3: parameters and gradients
/// too), `recompute` (0 or 1; else as the model says), `stages_per_rank` (stages that a pipeline
/// rank holds in turns, 1 otherwise; layer_boundaries are those of all pp times as many),
/// `fast_mode` (0 or 1, 0 otherwise: of models that return home) and, for models without measured
/// seconds, `sequence` (tokens of a sample). All columns pass through.
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
