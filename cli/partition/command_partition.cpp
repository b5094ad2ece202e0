#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include <unistd.h>

#include "tessera/base/error.h"
#include "tessera/base/json/parse.h"
#include "tessera/graph/model_graph.h"
#include "tessera/partition/partition.h"
#include "tessera/report/partition_tree.h"

#include "cli/command.h"
#include "cli/partition/operations_view.h"
#include "cli/partition/preset_graph.h"
#include "cli/text_file.h"
#include "models/presets.h"

namespace tessera::cli {

namespace partition_command {
namespace {

struct Options {
  std::string model;
  std::string graph_file;
  std::string svg_file;
  int pipeline_parallel_degree = 0;
  int tensor_parallel_degree = 1;
  std::string optimize = "memory";
  double memory_weight = 0.8;
  bool json = false;
  bool all = false;
  bool list = false;
  bool operations = false;
};

graph::ModelGraph read_graph(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) {
    throw ConfigError(str("--graph: cannot read \"", path, "\""));
  }
  try {
    return graph::model_graph_from_json(text);
  } catch (const PlanError& error) {
    throw PlanError(str(path, ": ", error.what()));
  }
}

void list_presets(bool json) {
  if (json) {
    OrderedJson all = OrderedJson::array();
    for (const models::Preset& preset : models::presets()) {
      all.push_back(
          {{"name", preset.name},
           {"family", preset.family},
           {"parameters", preset.parameters},
           {"description", preset.description}});
    }
    std::printf("%s\n", indented(all, 2).c_str());
    return;
  }
  for (const models::Preset& preset : models::presets()) {
    std::printf("%-14s %s\n", preset.name.c_str(), preset.description.c_str());
  }
}

void show_operations(const Options& options) {
  const DividedOperations divided = divide_preset(
      options.model,
      {.parts = options.pipeline_parallel_degree,
       .balance = options.optimize == "speed" ? operations::Balance::kWork
                                              : operations::Balance::kVariables});
  if (!options.svg_file.empty()) {
    write_text_file(options.svg_file, svg_of(divided));
  }
  std::fputs(report_of(divided).c_str(), stdout);
}

void show(const Options& options) {
  DistributedGraph model;
  if (options.graph_file.empty()) {
    model = graph_of_preset(options.model, options.tensor_parallel_degree, options.optimize);
  } else {
    model.graph = read_graph(options.graph_file);
  }
  const graph::ModelGraph& graph = model.graph;
  const partitioning::Result result = partitioning::partition(
      graph,
      {.partitions = options.pipeline_parallel_degree, .memory_weight = options.memory_weight});
  const report::PartitionView view = {
      .graph = graph,
      .tree = result.tree,
      .cost = result.cost,
      .partition = result.partition_of_node,
      .total = result.total,
      .warnings = result.warnings,
      .memory_weight = options.memory_weight};
  // The file first: after it, what is printed is complete.
  if (!options.svg_file.empty()) {
    write_text_file(options.svg_file, report::partition_tree_svg(view));
  }
  if (!options.json) {
    for (const std::string& line : model.replaced) {
      std::printf("tensor parallelism: %s\n", line.c_str());
    }
  }
  const std::string text =
      options.json ? report::partition_tree_json(view)
                   : report::partition_tree_text(view, options.all, isatty(STDOUT_FILENO) != 0);
  std::fputs(text.c_str(), stdout);
}

void set_up(CLI::App& app) {
  auto options = std::make_shared<Options>();
  auto* source = app.add_option_group("source");
  source->add_option("--model", options->model, "a preset, see --list");
  source->add_option("--graph", options->graph_file, "a traced model graph as JSON");
  source->add_flag("--list", options->list, "print the presets and stop");
  source->require_option(1);
  app.add_option(
      "--pipeline-parallel-degree",
      options->pipeline_parallel_degree,
      "number of partitions; needed but with --list");
  app.add_option(
         "--tensor-parallel-degree",
         options->tensor_parallel_degree,
         "the part of the first rank of so many")
      ->check(CLI::Range(1, 1000000))
      ->excludes("--graph")
      ->capture_default_str();
  app.add_option(
         "--optimize", options->optimize, "how tensor parallelism distributes: memory or speed")
      ->check(CLI::IsMember({"memory", "speed"}))
      ->capture_default_str();
  app.add_option(
         "--memory-weight", options->memory_weight, "0 balances computation, 1 balances memory")
      ->capture_default_str();
  app.add_flag(
      "--json", options->json, "every node and the totals as JSON; with --list the presets");
  app.add_flag(
      "--all",
      options->all,
      "every node in the terminal; otherwise layers that run on one partition "
      "are one line");
  app.add_flag(
         "--operations",
         options->operations,
         "divide the operators that the forward calls (partition_mode \"operations\"); --optimize "
         "says what is balanced")
      ->excludes("--graph", "--json", "--all", "--tensor-parallel-degree", "--memory-weight");
  app.add_option("--svg", options->svg_file, "also draw the tree to this file");
  app.callback([options] {
    if (options->list) {
      list_presets(options->json);
      return;
    }
    if (options->pipeline_parallel_degree == 0) {
      throw ConfigError(
          "--pipeline-parallel-degree is missing; write the number of "
          "partitions, 1 or more");
    }
    options->operations ? show_operations(*options) : show(*options);
  });
}

const RegisterCommand registered({
    "partition",
    "show how a model is divided over pipeline ranks",
    set_up,
});

} // namespace
} // namespace partition_command

} // namespace tessera::cli
