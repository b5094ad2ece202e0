#include "tessera/operations/cut.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/operations/problem.h"

namespace tessera::operations {

namespace {

constexpr int kMostTried = 12; // groups

// The least imbalance that a division could have: nothing divides a group.
double least_imbalance(const Problem& problem) {
  double least = 1;
  for (const std::vector<double>& weights : problem.weights) {
    least = std::max(least, *std::max_element(weights.begin(), weights.end()));
  }
  return least;
}

// Runs of groups, in their order, of even load of what is balanced first.
std::vector<int> in_order(const Problem& problem) {
  std::vector<int> part_of_group(problem.groups);
  double load = 0;
  for (int group = 0; group < problem.groups; ++group) {
    const double weight = problem.weights.front()[group];
    part_of_group[group] = std::min(problem.parts - 1, static_cast<int>(load + weight / 2));
    load += weight;
  }
  return part_of_group;
}

// A free group goes where the most bytes that it reads are made, else where most bytes that it
// makes are read, else to the first part.
std::vector<int> near_placed(const Problem& problem) {
  std::vector<int> part_of_group = problem.placed;
  bool changed = true;
  while (changed) {
    changed = false;
    std::vector<std::vector<double>> bytes(problem.groups, std::vector<double>(problem.parts, 0));
    for (const Problem::Net& net : problem.nets) {
      for (const int reader : net.readers) {
        if (part_of_group[net.producer] >= 0) {
          bytes[reader][part_of_group[net.producer]] += static_cast<double>(net.bytes) + 1;
        } else if (part_of_group[reader] >= 0) {
          bytes[net.producer][part_of_group[reader]] += static_cast<double>(net.bytes) + 1;
        }
      }
    }
    for (int group = 0; group < problem.groups; ++group) {
      const auto most = std::max_element(bytes[group].begin(), bytes[group].end());
      if (part_of_group[group] < 0 && *most > 0) {
        part_of_group[group] = static_cast<int>(most - bytes[group].begin());
        changed = true;
      }
    }
  }
  std::replace(part_of_group.begin(), part_of_group.end(), -1, 0);
  return part_of_group;
}

std::vector<int> search(Problem& problem) {
  const bool placed =
      std::any_of(problem.placed.begin(), problem.placed.end(), [](int part) { return part >= 0; });
  if (placed) {
    std::vector<int> division = near_placed(problem);
    problem.limit = kSlack * problem.score(division).imbalance;
    improve(problem, division);
    return division;
  }
  if (problem.groups <= kMostTried && divisions(problem.groups, problem.parts) <= kMostDivisions) {
    return try_all(problem);
  }
  problem.limit = kSlack * least_imbalance(problem);
  std::vector<int> best = divide_multilevel(problem);
  std::vector<int> other = in_order(problem);
  improve(problem, best);
  improve(problem, other);
  return problem.score(other) < problem.score(best) ? other : best;
}

} // namespace

Cut cut(const Graph& graph, const Units& units, const CutOptions& options) {
  validate(graph);
  if (options.parts < 1) {
    throw PlanError(
        str("operations are to be divided into ", options.parts, " parts; write 1 or more"));
  }
  const std::vector<int> group_of_operation = make_groups(graph, units);
  Problem problem = make_problem(graph, group_of_operation, options);
  Cut result;
  result.groups = problem.groups;
  if (problem.groups == 0) {
    return result;
  }
  const std::vector<int> part_of_group =
      options.parts == 1 ? std::vector<int>(problem.groups, 0) : search(problem);
  for (const int group : group_of_operation) {
    result.part_of_operation.push_back(part_of_group[group]);
  }
  const Score score = problem.score(part_of_group);
  result.crossing_bytes = score.bytes;
  result.imbalance = score.imbalance;
  return result;
}

} // namespace tessera::operations
