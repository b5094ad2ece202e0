#include "tessera/partition/partition.h"

#include <string>
#include <utility>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/cost/module_cost.h"
#include "tessera/partition/holders.h"
#include "tessera/partition/strategies.h"

namespace tessera::partitioning {

namespace {

// Lists the partitions that hold no parameter, for the warning: "2, 3".
std::string list_of_empty(const graph::ModelGraph& graph, const Result& result, int partitions) {
  std::vector<bool> holds(partitions, false);
  for (std::size_t n = 0; n < result.tree.nodes.size(); ++n) {
    for (const int module : result.tree.nodes[n].modules) {
      if (!graph.modules[module].parameters.empty()) {
        holds[result.partition_of_node[n]] = true;
      }
    }
  }
  std::string list;
  for (int i = 0; i < partitions; ++i) {
    if (!holds[i]) {
      list += str(list.empty() ? "" : ", ", i);
    }
  }
  return list;
}

} // namespace

Result partition(const graph::ModelGraph& graph, const Options& options) {
  if (options.partitions < 1) {
    throw ConfigError(
        str("pipeline_parallel_degree: found ", options.partitions, "; expected 1 or more"));
  }
  Result result;
  result.tree = graph::build_module_tree(graph);
  cost::NodeCosts costs =
      cost::node_costs(graph, result.tree, {.memory_weight = options.memory_weight});
  result.cost = std::move(costs.subtree);
  if (options.auto_partition) {
    if (!options.manual.empty()) {
      result.warnings.emplace_back(
          "auto_partition is true, so the manual partition of modules is "
          "ignored; set auto_partition to false to use it");
    }
    partition_automatically(graph, options.partitions, result);
  } else {
    partition_manually(graph, options, result);
  }
  result.total.assign(options.partitions, 0);
  for (std::size_t n = 0; n < costs.own.size(); ++n) {
    result.total[result.partition_of_node[n]] += costs.own[n];
  }
  for (std::size_t i = 0; i < graph.modules.size(); ++i) {
    result.partition[graph.modules[i].path] =
        result.partition_of_node[result.tree.node_of_module[i]];
  }
  const std::string empty = list_of_empty(graph, result, options.partitions);
  if (!empty.empty()) {
    const int holders = count_holders(graph, result.tree)[0];
    result.warnings.push_back(
        str("no parameter is placed on partition ",
            empty,
            ": the model has ",
            holders,
            " separable module",
            holders == 1 ? "" : "s",
            " with parameters for a pipeline_parallel_degree of ",
            options.partitions,
            options.auto_partition ? "; lower the degree, or hold more of the model's layers as "
                                     "modules that can be placed"
                                   : "; place a module there or lower the degree"));
  }
  return result;
}

} // namespace tessera::partitioning
