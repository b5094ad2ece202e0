#pragma once

#include <compare>
#include <cstdint>
#include <vector>

#include "tessera/operations/cut_options.h"
#include "tessera/operations/graph.h"
#include "tessera/operations/units.h"

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
  bool wished = false; // some group is placed by a wish (Operation::part)
  bool held = false; // some group is placed by its variables
  std::vector<std::vector<double>> weights; // by what is balanced, by group; their mean load is 1
  std::vector<bool> holds; // by group, whether it has variables
  std::vector<int> placed; // by group, its part; -1: free
  struct Net { // a tensor that more than one group uses
    int producer = 0;
    std::vector<int> readers; // groups, ascending, without the producer
    std::int64_t bytes = 0;
  };
  std::vector<Net> nets;
  /// By group, ascending: those that use a tensor of it, or that were wished to the same part.
  std::vector<std::vector<int>> neighbours;

  /// Imbalance above it is an excess.
  double limit = 1;

  Score score(const std::vector<int>& part_of_group) const;
};

Problem make_problem(
    const Graph& graph,
    const Units& units,
    const std::vector<int>& group_of_operation,
    const CutOptions& options);

/// Returns the connected pieces of the groups of one part, each ascending.
std::vector<std::vector<int>>
pieces_of(const Problem& problem, const std::vector<int>& part_of_group, int part);

/// How far the imbalance may be above the least.
inline constexpr double kSlack = 1.1;

/// The most divisions that `try_all` looks at.
inline constexpr double kMostDivisions = 1e6;
/// Returns how many divisions of the groups into at most `parts` parts there are.
double divisions(int groups, int parts);
/// Returns how many divisions `try_all` would look at.
double divisions(const Problem& problem);

/// Returns the best of all divisions with the placed groups where they are; sets the problem's
/// limit. Parts are numbered by their first groups where none is placed.
std::vector<int> try_all(Problem& problem);

/// METIS's division into parts, numbered by their first groups. Placed groups are not looked at.
/// Throws: PlanError when METIS fails.
std::vector<int> divide_multilevel(const Problem& problem);

/// Names the parts of a division anew so that most placed groups are where they belong, and moves
/// the others of them there.
void fit_to_placed(const Problem& problem, std::vector<int>& part_of_group);

/// Returns a division in which every part has grown from its placed groups, and a part without any
/// from the group that is farthest from all parts, the lightest part first.
std::vector<int> grow_from_placed(const Problem& problem);

/// Moves single groups, and pieces of parts that are not connected, and exchanges two groups, for
/// as long as that is better. Placed groups stay.
void improve(const Problem& problem, std::vector<int>& part_of_group);

} // namespace tessera::operations
