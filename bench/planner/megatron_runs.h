#pragma once

// Runs of Megatron-LM that two papers publish, priced. Header only: `planner_megatron` and the test
// of accuracy.

#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/base/statistics.h"
#include "tessera/planner/description.h"
#include "tessera/planner/strategies_csv.h"

namespace tessera::bench {

/// A run, with the microbatch that is priced fastest where its paper does not say it.
struct MegatronRun {
  std::string table; // "weak scaling" or "small batches"
  std::string model;
  int devices = 0;
  int microbatch_size = 0;
  double measured = 0; // seconds of a step
  double priced = 0; // infinite for a run that does not fit
};

/// Prices FOLDER/runs.csv with the models and the cluster beside it.
/// Throws: ConfigError for files that cannot be read.
inline std::vector<MegatronRun> megatron_runs(
    const std::string& folder,
    const cost::Constants& constants = {},
    const std::function<void(cost::Cluster&)>& change = [](cost::Cluster&) {}) {
  std::ifstream in(folder + "/runs.csv");
  if (!in) {
    throw ConfigError(str("cannot read ", folder, "/runs.csv"));
  }
  std::string header;
  std::getline(in, header);
  std::vector<std::string> models; // in the order of the file
  std::map<std::string, std::string> tables;
  for (std::string line; std::getline(in, line);) {
    std::istringstream cells(line);
    std::string table;
    std::string model;
    std::getline(std::getline(cells, table, ','), model, ',');
    if (tables.count(model) == 0) {
      models.push_back(model);
    }
    tables[model] += line + "\n";
  }
  auto cluster = planner::load_cluster(folder + "/cluster_selene.json");
  change(cluster);
  std::vector<MegatronRun> runs;
  for (const std::string& model : models) {
    const auto priced = planner::price_rows(
        header + "\n" + tables[model],
        folder + "/runs.csv",
        planner::load_model(folder + "/model_" + model + ".json"),
        cluster,
        constants);
    std::map<std::string, MegatronRun> fastest; // by table
    for (const auto& row : priced.rows) {
      const MegatronRun run{
          .table = priced.cell(row, "table"),
          .model = model,
          .devices = 8 * std::stoi(priced.cell(row, "nodes")),
          .microbatch_size = std::stoi(priced.cell(row, "mbs")),
          .measured = std::stod(priced.cell(row, "measured_s")),
          .priced = row.seconds()};
      const auto [found, first] = fastest.emplace(run.table, run);
      if (!first && run.priced < found->second.priced) {
        found->second = run;
      }
    }
    for (auto& [table, run] : fastest) {
      runs.push_back(std::move(run));
    }
  }
  return runs;
}

/// Returns every limit that the runs break, in words; empty: none.
inline std::vector<std::string> broken_megatron_limits(
    const std::string& folder,
    const cost::Constants& constants = {},
    const std::function<void(cost::Cluster&)>& change = [](cost::Cluster&) {}) {
  // Priced over measured of each, as reached; all of them ran, so all of them fit.
  constexpr double kLeast = 1.04;
  constexpr double kMost = 1.16;
  constexpr double kMiddle = 1.075;
  constexpr double kOfTheSmallest = 1.054;
  std::vector<std::string> broken;
  std::vector<double> ratios;
  for (const MegatronRun& run : megatron_runs(folder, constants, change)) {
    ratios.push_back(run.priced / run.measured);
    if (!(ratios.back() > kLeast && ratios.back() < kMost)) {
      broken.push_back(str(run.table, " ", run.model, ": priced to measured is ", ratios.back()));
    }
  }
  if (ratios.empty() || std::abs(ratios.front() - kOfTheSmallest) > 0.01) {
    broken.push_back(str("the smallest model: ", ratios.empty() ? 0 : ratios.front()));
  }
  if (std::abs(median(ratios) - kMiddle) > 0.015) {
    broken.push_back(str("in the middle priced to measured is ", median(ratios)));
  }
  return broken;
}

} // namespace tessera::bench
