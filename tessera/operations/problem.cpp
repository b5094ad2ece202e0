#include "tessera/operations/problem.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "tessera/base/error.h"

namespace tessera::operations {

namespace {

double imbalance_of(const Problem& problem, const std::vector<int>& part_of_group) {
  double most = 1;
  std::vector<double> load(problem.parts);
  for (const std::vector<double>& weights : problem.weights) {
    std::fill(load.begin(), load.end(), 0);
    for (int group = 0; group < problem.groups; ++group) {
      load[part_of_group[group]] += weights[group];
    }
    most = std::max(most, *std::max_element(load.begin(), load.end()));
  }
  return most;
}

std::int64_t crossing_bytes(const Problem& problem, const std::vector<int>& part_of_group) {
  std::int64_t bytes = 0;
  std::vector<int> readers;
  for (const Problem::Net& net : problem.nets) {
    readers.clear();
    for (const int group : net.readers) {
      const int part = part_of_group[group];
      if (part != part_of_group[net.producer] &&
          std::find(readers.begin(), readers.end(), part) == readers.end()) {
        readers.push_back(part);
      }
    }
    bytes += net.bytes * static_cast<std::int64_t>(readers.size());
  }
  return bytes;
}

int parts_without_variables(const Problem& problem, const std::vector<int>& part_of_group) {
  std::vector<bool> has(problem.parts, false);
  int holders = 0;
  for (int group = 0; group < problem.groups; ++group) {
    if (problem.holds[group]) {
      has[part_of_group[group]] = true;
      ++holders;
    }
  }
  const auto with = static_cast<int>(std::count(has.begin(), has.end(), true));
  return std::min(problem.parts, holders) - with;
}

// Scaled so that a part's mean load is 1; where nothing has a weight, all groups have the same.
std::vector<double> scaled(std::vector<double> weights, int parts) {
  double total = 0;
  for (const double weight : weights) {
    total += weight;
  }
  for (double& weight : weights) {
    weight = (total > 0 ? weight / total : 1 / static_cast<double>(weights.size())) * parts;
  }
  return weights;
}

void add_weights(
    Problem& problem,
    const Graph& graph,
    const std::vector<int>& group_of_operation,
    Balance balance) {
  const auto count = static_cast<std::size_t>(problem.groups);
  std::vector<double> bytes(count);
  std::vector<double> variables(count);
  std::vector<double> operations(count);
  const bool timed =
      std::any_of(graph.operations.begin(), graph.operations.end(), [](const Operation& operation) {
        return operation.seconds > 0;
      });
  std::set<int> counted;
  for (std::size_t i = 0; i < graph.operations.size(); ++i) {
    const int group = group_of_operation[i];
    operations[group] += timed ? graph.operations[i].seconds : 1;
    for (const int variable : graph.operations[i].variables) {
      problem.holds[group] = true;
      if (counted.insert(variable).second) {
        bytes[group] += static_cast<double>(graph.variables[variable].bytes);
        variables[group] += 1;
      }
    }
  }
  if (balance == Balance::kVariables) {
    problem.weights = {scaled(bytes, problem.parts)};
  } else {
    problem.weights = {scaled(variables, problem.parts), scaled(operations, problem.parts)};
  }
}

void add_nets(Problem& problem, const Graph& graph, const std::vector<int>& group_of_operation) {
  std::vector<std::set<int>> readers(graph.tensors.size());
  for (std::size_t i = 0; i < graph.operations.size(); ++i) {
    for (const int tensor : graph.operations[i].reads) {
      readers[tensor].insert(group_of_operation[i]);
    }
  }
  std::vector<std::set<int>> neighbours(problem.groups);
  for (std::size_t t = 0; t < graph.tensors.size(); ++t) {
    if (graph.tensors[t].producer < 0) {
      continue;
    }
    const int producer = group_of_operation[graph.tensors[t].producer];
    readers[t].erase(producer);
    if (readers[t].empty()) {
      continue;
    }
    problem.nets.push_back(
        {producer, {readers[t].begin(), readers[t].end()}, graph.tensors[t].bytes});
    for (const int reader : readers[t]) {
      neighbours[producer].insert(reader);
      neighbours[reader].insert(producer);
    }
  }
  for (const std::set<int>& of_group : neighbours) {
    problem.neighbours.emplace_back(of_group.begin(), of_group.end());
  }
}

/// Puts groups where their operations' scopes and variables are.
class Placing {
 public:
  Placing(
      Problem& problem,
      const Graph& graph,
      const Units& units,
      const std::vector<int>& group_of_operation)
      : problem_(problem),
        graph_(graph),
        units_(units),
        group_of_operation_(group_of_operation),
        placed_by_(problem.groups) {}

  void place(int operation, int part, const std::string& said_by) {
    if (part < 0) {
      return;
    }
    if (part >= problem_.parts) {
      throw PlanError(
          str(name_of_operation(graph_, operation),
              " is to run on rank ",
              part,
              " (",
              said_by,
              "); there are ranks 0 to ",
              problem_.parts - 1));
    }
    const int group = group_of_operation_[operation];
    if (problem_.placed[group] >= 0 && problem_.placed[group] != part) {
      refuse(operation, part, said_by);
    }
    if (problem_.placed[group] < 0) {
      problem_.placed[group] = part;
      placed_by_[group] = {operation, said_by};
    }
  }

 private:
  [[noreturn]] void refuse(int operation, int part, const std::string& said_by) const {
    const int group = group_of_operation_[operation];
    const auto& [first, first_said_by] = placed_by_[group];
    const std::string why = why_together(graph_, units_, first, operation);
    throw PlanError(
        str(name_of_operation(graph_, first),
            " is to run on rank ",
            problem_.placed[group],
            " (",
            first_said_by,
            ") and ",
            name_of_operation(graph_, operation),
            " on rank ",
            part,
            " (",
            said_by,
            "), but they have to be on one rank",
            why.empty() ? "" : ": ",
            why,
            ". Ask for one rank, or leave one of both out"));
  }

  Problem& problem_;
  const Graph& graph_;
  const Units& units_;
  const std::vector<int>& group_of_operation_;
  std::vector<std::pair<int, std::string>> placed_by_; // by group: operation, who
};

// What was wished to one part is connected by the wish.
void connect_wishes(
    Problem& problem,
    const Graph& graph,
    const std::vector<int>& group_of_operation) {
  std::map<int, std::set<int>> wished; // by part
  for (std::size_t i = 0; i < graph.operations.size(); ++i) {
    if (graph.operations[i].part >= 0) {
      wished[graph.operations[i].part].insert(group_of_operation[i]);
      problem.wished = true;
    }
  }
  for (const auto& [part, groups] : wished) {
    for (const int group : groups) {
      std::vector<int>& near = problem.neighbours[group];
      near.insert(near.end(), groups.begin(), groups.end());
      std::sort(near.begin(), near.end());
      near.erase(std::unique(near.begin(), near.end()), near.end());
      std::erase(near, group);
    }
  }
}

} // namespace

std::vector<std::vector<int>>
pieces_of(const Problem& problem, const std::vector<int>& part_of_group, int part) {
  std::vector<bool> seen(problem.groups, false);
  std::vector<std::vector<int>> pieces;
  for (int start = 0; start < problem.groups; ++start) {
    if (part_of_group[start] != part || seen[start]) {
      continue;
    }
    std::vector<int>& piece = pieces.emplace_back(1, start);
    seen[start] = true;
    for (std::size_t k = 0; k < piece.size(); ++k) {
      for (const int other : problem.neighbours[piece[k]]) {
        if (!seen[other] && part_of_group[other] == part) {
          seen[other] = true;
          piece.push_back(other);
        }
      }
    }
    std::sort(piece.begin(), piece.end());
  }
  return pieces;
}

Problem make_problem(
    const Graph& graph,
    const Units& units,
    const std::vector<int>& group_of_operation,
    const CutOptions& options) {
  Problem problem;
  for (const int group : group_of_operation) {
    problem.groups = std::max(problem.groups, group + 1);
  }
  problem.parts = options.parts;
  problem.holds.assign(problem.groups, false);
  problem.placed.assign(problem.groups, -1);
  add_weights(problem, graph, group_of_operation, options.balance);
  add_nets(problem, graph, group_of_operation);
  Placing placing(problem, graph, units, group_of_operation);
  for (int i = 0; i < static_cast<int>(graph.operations.size()); ++i) {
    const Operation& operation = graph.operations[i];
    placing.place(i, operation.part, operation.placed_by);
    for (const int variable : operation.variables) {
      if (!options.part_of_variable.empty()) {
        placing.place(
            i,
            options.part_of_variable.at(variable),
            str("where '", graph.variables[variable].name, "' is"));
        problem.held = problem.held || options.part_of_variable[variable] >= 0;
      }
    }
  }
  problem.contiguous =
      options.contiguous && pieces_of(problem, std::vector<int>(problem.groups, 0), 0).size() == 1;
  connect_wishes(problem, graph, group_of_operation);
  return problem;
}

Score Problem::score(const std::vector<int>& part_of_group) const {
  Score score;
  score.without_variables = parts_without_variables(*this, part_of_group);
  for (int part = 0; part < parts && contiguous; ++part) {
    score.broken += pieces_of(*this, part_of_group, part).size() > 1 ? 1 : 0;
  }
  score.imbalance = imbalance_of(*this, part_of_group);
  score.excess = score.imbalance > limit ? score.imbalance : 0;
  score.bytes = crossing_bytes(*this, part_of_group);
  return score;
}

} // namespace tessera::operations
