#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "tessera/operations/cut_options.h"
#include "tessera/operations/graph.h"

namespace tessera::operations {

/// How good a division is; less is better, and what comes first counts first.
struct Score {
  int without_variables = 0; // parts, beyond what cannot be helped
  int broken = 0; // parts in several pieces
  double excess = 0; // imbalance, where it is above the limit
  std::int64_t bytes = 0; // that cross
  double imbalance = 1;
  std::partial_ordering operator<=>(const Score&) const = default;
};

/// The groups of a graph as numbers, for searches.
struct Problem {
  int groups = 0;
  int parts = 1;
  bool contiguous = false; // and the graph is connected
  std::vector<std::vector<double>> weights; // by what is balanced, by group; their mean load is 1
  std::vector<bool> holds; // by group, whether it has variables
  std::vector<int> placed; // by group, its part; -1: free
  struct Net { // a tensor that more than one group uses
    int producer = 0;
    std::vector<int> readers; // groups, ascending, without the producer
    std::int64_t bytes = 0;
  };
  std::vector<Net> nets;
  std::vector<std::vector<int>> neighbours; // by group, ascending

  /// Imbalance above it is an excess.
  double limit = 1;

  Score score(const std::vector<int>& part_of_group) const;
};

Problem make_problem(
    const Graph& graph,
    const std::vector<int>& group_of_operation,
    const CutOptions& options);

/// How far the imbalance may be above the least.
inline constexpr double kSlack = 1.1;

/// The most divisions that `try_all` looks at.
inline constexpr double kMostDivisions = 1e6;
/// Returns how many divisions of the groups into at most `parts` parts there are.
double divisions(int groups, int parts);

/// Returns the best of all divisions, parts numbered by their first groups; sets the problem's
/// limit. Nothing may be placed.
std::vector<int> try_all(Problem& problem);

/// METIS's division into parts, numbered by their first groups.
/// Throws: PlanError when METIS fails.
std::vector<int> divide_multilevel(const Problem& problem);

/// Moves single groups, and exchanges two, for as long as that is better. Placed groups stay.
void improve(const Problem& problem, std::vector<int>& part_of_group);

} // namespace tessera::operations
