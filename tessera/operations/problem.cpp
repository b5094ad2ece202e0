#include "tessera/operations/problem.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "tessera/base/error.h"

namespace tessera::operations {

namespace {

// The number of connected pieces of the groups with this part.
int pieces(const Problem& problem, const std::vector<int>& part_of_group, int part) {
  std::vector<bool> seen(problem.groups, false);
  std::vector<int> open;
  int count = 0;
  for (int start = 0; start < problem.groups; ++start) {
    if (part_of_group[start] != part || seen[start]) {
      continue;
    }
    ++count;
    seen[start] = true;
    open.push_back(start);
    while (!open.empty()) {
      const int group = open.back();
      open.pop_back();
      for (const int other : problem.neighbours[group]) {
        if (!seen[other] && part_of_group[other] == part) {
          seen[other] = true;
          open.push_back(other);
        }
      }
    }
  }
  return count;
}

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

void add_placed(
    Problem& problem,
    const Graph& graph,
    const std::vector<int>& group_of_operation,
    const std::vector<int>& part_of_variable) {
  for (std::size_t i = 0; i < graph.operations.size() && !part_of_variable.empty(); ++i) {
    for (const int variable : graph.operations[i].variables) {
      const int part = part_of_variable.at(variable);
      int& placed = problem.placed[group_of_operation[i]];
      if (placed >= 0 && placed != part) {
        throw PlanError(
            str("operation ",
                i,
                " (",
                graph.operations[i].name,
                ") uses '",
                graph.variables[variable].name,
                "' of rank ",
                part,
                ", and must be with operations of rank ",
                placed));
      }
      placed = part;
    }
  }
}

} // namespace

Problem make_problem(
    const Graph& graph,
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
  add_placed(problem, graph, group_of_operation, options.part_of_variable);
  problem.contiguous =
      options.contiguous && pieces(problem, std::vector<int>(problem.groups, 0), 0) == 1;
  return problem;
}

Score Problem::score(const std::vector<int>& part_of_group) const {
  Score score;
  score.without_variables = parts_without_variables(*this, part_of_group);
  for (int part = 0; part < parts && contiguous; ++part) {
    score.broken += pieces(*this, part_of_group, part) > 1 ? 1 : 0;
  }
  score.imbalance = imbalance_of(*this, part_of_group);
  score.excess = score.imbalance > limit ? score.imbalance : 0;
  score.bytes = crossing_bytes(*this, part_of_group);
  return score;
}

} // namespace tessera::operations
