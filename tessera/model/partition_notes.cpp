#include "tessera/model/partition_notes.h"

#include <cstdio>
#include <map>
#include <set>
#include <tuple>

#include "tessera/base/error.h"

namespace tessera::model {

namespace {

std::int64_t elements_of(const graph::ModelGraph& graph) {
  std::int64_t elements = 0;
  for (const graph::Parameter& parameter : graph.parameters) {
    elements += parameter.elements;
  }
  return elements;
}

std::string percent(std::int64_t part, std::int64_t whole) {
  char text[32];
  std::snprintf(
      text,
      sizeof text,
      "%.1f %%",
      whole == 0 ? 0.0 : 100.0 * static_cast<double>(part) / static_cast<double>(whole));
  return text;
}

// By pipeline rank; a shared parameter counts once.
std::vector<std::int64_t> elements_of_ranks(
    const graph::ModelGraph& graph,
    const partitioning::Result& result,
    int partitions) {
  std::vector<std::int64_t> owned(partitions, 0);
  std::set<int> seen;
  for (std::size_t i = 0; i < graph.modules.size(); ++i) {
    const int rank = result.partition_of_node.at(result.tree.node_of_module.at(i));
    for (const int parameter : graph.modules[i].parameters) {
      if (seen.insert(parameter).second) {
        owned.at(rank) += graph.parameters[parameter].elements;
      }
    }
  }
  return owned;
}

struct Alike {
  int modules = 0;
  std::int64_t elements = 0;
  std::string first;
};

} // namespace

std::vector<std::string> notes_on_kept_modules(const graph::ModelGraph& graph) {
  std::map<std::tuple<std::string, std::string, std::string>, Alike> groups;
  for (const graph::KeptModule& kept : graph.kept) {
    Alike& group = groups[{kept.type, kept.reason, kept.instead}];
    if (group.modules++ == 0) {
      group.first = kept.path;
    }
    group.elements += kept.elements;
  }
  const std::int64_t all = elements_of(graph);
  std::vector<std::string> lines;
  for (const auto& [key, group] : groups) {
    const auto& [type, reason, instead] = key;
    lines.push_back(
        str(group.modules == 1
                ? str("module '", group.first, "' of type ", type)
                : str(group.modules, " modules of type ", type, ", first '", group.first, "',"),
            " (",
            percent(group.elements, all),
            " of the parameters) cannot be placed on ",
            group.modules == 1 ? "its own: " : "their own: ",
            reason,
            "; to have ",
            group.modules == 1 ? "it" : "them",
            " placed, write ",
            instead));
  }
  return lines;
}

std::string shares_of_ranks(
    const graph::ModelGraph& graph,
    const partitioning::Result& result,
    int partitions) {
  const std::vector<std::int64_t> owned = elements_of_ranks(graph, result, partitions);
  const std::int64_t all = elements_of(graph);
  std::string text;
  for (int rank = 0; rank < partitions; ++rank) {
    text +=
        str(rank == 0 ? "" : ", ",
            "rank ",
            rank,
            rank == 0 ? " holds " : " ",
            percent(owned[rank], all),
            rank == 0 ? " of the parameters" : "");
  }
  return text;
}

std::string places_of_modules(
    const graph::ModelGraph& graph,
    const partitioning::Result& result,
    int partitions) {
  const auto rank_of = [&](std::size_t module) {
    return result.partition_of_node.at(result.tree.node_of_module.at(module));
  };
  struct Run { // of siblings that stand one after the other
    std::string first;
    std::string last;
    int parent = -1;
  };
  std::vector<std::vector<Run>> runs(partitions);
  std::vector<std::size_t> position(graph.modules.size(), 0); // among the siblings
  for (const graph::Module& module : graph.modules) {
    for (std::size_t i = 0; i < module.children.size(); ++i) {
      position[static_cast<std::size_t>(module.children[i])] = i;
    }
  }
  std::vector<std::size_t> last_position(partitions, 0);
  for (std::size_t i = 0; i < graph.modules.size(); ++i) {
    const graph::Module& module = graph.modules[i];
    const int rank = rank_of(i);
    if (module.parent >= 0 && rank_of(static_cast<std::size_t>(module.parent)) == rank) {
      continue; // its parent stands for it
    }
    const std::string name = module.path.empty() ? "the model itself" : module.path;
    auto& list = runs.at(rank);
    if (!list.empty() && list.back().parent == module.parent && module.parent >= 0 &&
        position[i] == last_position[rank] + 1) {
      list.back().last = name;
    } else {
      list.push_back({name, name, module.parent});
    }
    last_position[rank] = position[i];
  }
  std::string text;
  for (int rank = 0; rank < partitions; ++rank) {
    text += str(rank == 0 ? "" : "; ", "rank ", rank, ":");
    for (std::size_t i = 0; i < runs[rank].size(); ++i) {
      const Run& run = runs[rank][i];
      text += str(i == 0 ? " " : ", ", run.first, run.first == run.last ? "" : " to " + run.last);
    }
    text += runs[rank].empty() ? " nothing" : "";
  }
  return text;
}

void check_every_rank_owns_parameters(
    const graph::ModelGraph& graph,
    const partitioning::Result& result,
    int partitions) {
  if (graph.parameters.empty()) {
    return;
  }
  const std::vector<std::int64_t> owned = elements_of_ranks(graph, result, partitions);
  constexpr int kNamed = 8; // a line, however many ranks were asked for
  std::string empty;
  int count = 0;
  for (int rank = 0; rank < partitions; ++rank) {
    if (owned[rank] == 0 && ++count <= kNamed) {
      empty += empty.empty() ? str(rank) : str(", ", rank);
    }
  }
  if (count == 0) {
    return;
  }
  if (count > kNamed) {
    empty += str(" and ", count - kNamed, " more");
  }
  std::string text =
      str("pipeline rank ",
          empty,
          " of ",
          partitions,
          " would own no parameter of ",
          graph.name,
          ": the model has too few modules that can live on a rank of their own");
  for (const std::string& note : notes_on_kept_modules(graph)) {
    text += "\n  " + note;
  }
  text +=
      "\n  or choose a smaller pipeline_parallel_degree, or set "
      "\"allow_ranks_without_parameters\": "
      "true";
  throw PlanError(text);
}

} // namespace tessera::model
