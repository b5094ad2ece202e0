#include <string>
#include <vector>

#include "tessera/base/error.h"
#include "tessera/partition/strategies.h"

namespace tessera::partitioning {

namespace {

void check_index(const std::string& where, int index, int partitions) {
  if (index < 0 || index >= partitions) {
    throw ConfigError(
        str(where,
            ": found partition ",
            index,
            "; expected 0 to ",
            partitions - 1,
            " (pipeline_parallel_degree is ",
            partitions,
            ")"));
  }
}

std::string quoted(const std::string& path) {
  return path.empty() ? "the root module" : str("module \"", path, "\"");
}

// Throws when modules that share a parameter are on different partitions. Modules
// that share parameters through others are covered too, as each pair is checked.
void check_shared_parameters(
    const graph::ModelGraph& graph,
    const std::vector<int>& partition_of_module) {
  std::vector<int> first_holder(graph.parameters.size(), -1);
  for (std::size_t i = 0; i < graph.modules.size(); ++i) {
    for (const int parameter : graph.modules[i].parameters) {
      const int first = first_holder[parameter];
      if (first < 0) {
        first_holder[parameter] = static_cast<int>(i);
      } else if (partition_of_module[first] != partition_of_module[i]) {
        throw ConfigError(
            str(quoted(graph.modules[first].path),
                " is placed on partition ",
                partition_of_module[first],
                " and ",
                quoted(graph.modules[i].path),
                " on partition ",
                partition_of_module[i],
                ", but they share the parameter \"",
                graph.parameters[parameter].name,
                "\"; place both on one partition"));
      }
    }
  }
}

} // namespace

void partition_manually(const graph::ModelGraph& graph, const Options& options, Result& result) {
  check_index("default_partition", options.default_partition, options.partitions);
  std::map<std::string, int> unused = options.manual;
  std::vector<int> chosen(graph.modules.size(), options.default_partition);
  for (std::size_t i = 0; i < graph.modules.size(); ++i) {
    const graph::Module& module = graph.modules[i];
    const auto written = options.manual.find(module.path);
    if (written != options.manual.end()) {
      chosen[i] = written->second;
      unused.erase(module.path);
    } else if (module.manual_partition >= 0) {
      chosen[i] = module.manual_partition;
    } else if (i > 0) {
      chosen[i] = chosen[module.parent];
    }
    check_index(quoted(module.path), chosen[i], options.partitions);
  }
  if (!unused.empty()) {
    throw ConfigError(
        str("the manual partition names module \"",
            unused.begin()->first,
            "\", which the model \"",
            graph.name,
            "\" does not have"));
  }
  check_shared_parameters(graph, chosen);
  result.partition_of_node.clear();
  for (const graph::ModuleNode& node : result.tree.nodes) {
    result.partition_of_node.push_back(chosen[node.modules.front()]);
  }
}

} // namespace tessera::partitioning
