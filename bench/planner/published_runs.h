#pragma once

// The published runs of a folder, priced. Header only: `planner_runs` and the test of accuracy.

#include <algorithm>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "tessera/base/files.h"
#include "tessera/planner/description.h"
#include "tessera/planner/judgement.h"
#include "tessera/planner/strategies_csv.h"

namespace tessera::bench {

/// The runs of one model on one cluster.
struct PublishedRuns {
  std::string name; // "llama_1b", "mpt_7b_a100_80gb"
  planner::PricedTable table;

  int nodes(const planner::PricedRow& row) const {
    return std::stoi(table.cell(row, "nodes"));
  }
  std::set<int> node_counts() const {
    std::set<int> counts;
    for (const planner::PricedRow& row : table.rows) {
      counts.insert(nodes(row));
    }
    return counts;
  }
  std::function<bool(const planner::PricedRow&)> on_nodes(int count) const {
    return [this, count](const planner::PricedRow& row) { return nodes(row) == count; };
  }
};

/// Prices runs_MODEL_CLUSTER.csv on cluster_CLUSTER.json, where the folder has that, and
/// runs_MODEL.csv on cluster_h100_efa.json, with model_MODEL.json, in the order of their names.
/// `change` may change what a cluster's file says; `only` takes the names that begin so. Throws:
/// ConfigError.
inline std::vector<PublishedRuns> published_runs(
    const std::string& folder,
    const cost::Constants& constants,
    const std::function<void(cost::Cluster&)>& change = [](cost::Cluster&) {},
    const std::string& only = "") {
  const auto names_between = [&](const std::string& begin, const std::string& end) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      const std::string file = entry.path().filename().string();
      if (file.starts_with(begin) && file.ends_with(end)) {
        names.push_back(file.substr(begin.size(), file.size() - begin.size() - end.size()));
      }
    }
    std::sort(names.begin(), names.end());
    return names;
  };
  const auto clusters = names_between("cluster_", ".json");
  std::vector<PublishedRuns> all;
  for (const std::string& rest : names_between("runs_" + only, ".csv")) {
    const std::string name = only + rest;
    std::string model = name;
    std::string cluster = "h100_efa";
    for (const std::string& other : clusters) {
      if (name.ends_with("_" + other)) {
        cluster = other;
        model = name.substr(0, name.size() - cluster.size() - 1);
      }
    }
    const std::string path = folder + "/runs_" + name + ".csv";
    cost::Cluster described = planner::load_cluster(folder + "/cluster_" + cluster + ".json");
    change(described);
    all.push_back(
        {name,
         planner::price_rows(
             read_file(path),
             path,
             planner::load_model(folder + "/model_" + model + ".json"),
             described,
             constants)});
  }
  return all;
}

} // namespace tessera::bench
