#include "tessera/operations/cut.h"

#include <algorithm>

#include "tessera/base/error.h"
#include "tessera/operations/problem.h"

namespace tessera::operations {

namespace {

constexpr int kMostTried = 12; // groups

// The least imbalance that a division could have: nothing divides a group, or moves a placed one.
double least_imbalance(const Problem& problem) {
  double least = 1;
  for (const std::vector<double>& weights : problem.weights) {
    least = std::max(least, *std::max_element(weights.begin(), weights.end()));
    std::vector<double> placed(problem.parts, 0);
    for (int group = 0; group < problem.groups; ++group) {
      if (problem.placed[group] >= 0) {
        placed[problem.placed[group]] += weights[group];
      }
    }
    least = std::max(least, *std::max_element(placed.begin(), placed.end()));
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

std::vector<int> around_variables(Problem& problem) {
  std::vector<int> division = near_placed(problem);
  problem.limit = kSlack * problem.score(division).imbalance;
  improve(problem, division);
  return division;
}

std::vector<int> search(Problem& problem) {
  if (problem.groups <= kMostTried && divisions(problem) <= kMostDivisions) {
    return try_all(problem);
  }
  problem.limit = kSlack * least_imbalance(problem);
  std::vector<std::vector<int>> found{divide_multilevel(problem), in_order(problem)};
  if (problem.wished) {
    found.push_back(grow_from_placed(problem));
  }
  for (std::vector<int>& division : found) {
    if (problem.wished) {
      fit_to_placed(problem, division);
    }
    improve(problem, division);
  }
  return *std::min_element(
      found.begin(), found.end(), [&](const std::vector<int>& a, const std::vector<int>& b) {
        return problem.score(a) < problem.score(b);
      });
}

std::vector<int> divide(Problem& problem, const CutOptions& options) {
  if (options.default_part >= 0) {
    std::vector<int> division = problem.placed;
    std::replace(division.begin(), division.end(), -1, options.default_part);
    return division;
  }
  return problem.held ? around_variables(problem) : search(problem);
}

} // namespace

Cut cut(const Graph& graph, const Units& units, const CutOptions& options) {
  validate(graph);
  if (options.parts < 1) {
    throw PlanError(
        str("operations are to be divided into ", options.parts, " parts; write 1 or more"));
  }
  if (options.default_part >= options.parts) {
    throw PlanError(
        str("operations that nothing places are to run on rank ",
            options.default_part,
            "; there are ranks 0 to ",
            options.parts - 1));
  }
  const std::vector<int> group_of_operation = make_groups(graph, units);
  Problem problem = make_problem(graph, units, group_of_operation, options);
  Cut result;
  result.groups = problem.groups;
  if (problem.groups == 0) {
    return result;
  }
  const std::vector<int> part_of_group =
      options.parts == 1 ? std::vector<int>(problem.groups, 0) : divide(problem, options);
  for (const int group : group_of_operation) {
    result.part_of_operation.push_back(part_of_group[group]);
  }
  const Score score = problem.score(part_of_group);
  result.crossing_bytes = score.bytes;
  result.imbalance = score.imbalance;
  return result;
}

} // namespace tessera::operations
