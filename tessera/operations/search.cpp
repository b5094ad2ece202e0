// Searches that need no other library: all divisions, and moves of single groups.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/operations/problem.h"

namespace tessera::operations {

namespace {

constexpr int kMostPasses = 20;

bool any_placed(const Problem& problem) {
  return std::any_of(
      problem.placed.begin(), problem.placed.end(), [](int part) { return part >= 0; });
}

// Every division once: a placed group is where it is. Without any, a group goes to a part that an
// earlier one is in, or to the next; with some, parts differ, and a group goes to each.
void for_each_division(
    const Problem& problem,
    const std::function<void(const std::vector<int>&)>& visit) {
  std::vector<int> part_of_group(problem.groups, 0);
  const bool numbered = any_placed(problem);
  const std::function<void(int, int)> place = [&](int group, int used) {
    if (group == problem.groups) {
      visit(part_of_group);
      return;
    }
    if (problem.placed[group] >= 0) {
      part_of_group[group] = problem.placed[group];
      place(group + 1, used);
      return;
    }
    for (int part = 0; part < (numbered ? problem.parts : std::min(used + 1, problem.parts));
         ++part) {
      part_of_group[group] = part;
      place(group + 1, std::max(used, part + 1));
    }
  };
  place(0, 0);
}

} // namespace

double divisions(int groups, int parts) {
  // Of n groups into exactly k parts: Stirling's numbers of the second kind.
  std::vector<double> exactly(parts + 1, 0);
  exactly[0] = 1;
  for (int n = 1; n <= groups; ++n) {
    for (int k = std::min(n, parts); k >= 1; --k) {
      exactly[k] = k * exactly[k] + exactly[k - 1];
    }
    exactly[0] = 0;
  }
  double sum = 0;
  for (const double count : exactly) {
    sum += count;
  }
  return sum;
}

double divisions(const Problem& problem) {
  if (!any_placed(problem)) {
    return divisions(problem.groups, problem.parts);
  }
  const auto free = std::count(problem.placed.begin(), problem.placed.end(), -1);
  return std::pow(problem.parts, static_cast<double>(free));
}

std::vector<int> try_all(Problem& problem) {
  // Without a limit every imbalance counts before bytes do: first the least of it.
  problem.limit = 0;
  Score least{.without_variables = std::numeric_limits<int>::max()};
  for_each_division(problem, [&](const std::vector<int>& division) {
    least = std::min(
        least, problem.score(division), [](const Score& a, const Score& b) { return a < b; });
  });
  problem.limit = kSlack * least.imbalance;
  std::vector<int> best;
  Score score{.without_variables = std::numeric_limits<int>::max()};
  for_each_division(problem, [&](const std::vector<int>& division) {
    const Score other = problem.score(division);
    if (other < score) {
      score = other;
      best = division;
    }
  });
  return best;
}

namespace {

// Gives each piece of a part that is not connected to the part that it is best in.
bool join_pieces(const Problem& problem, std::vector<int>& part_of_group, Score& score) {
  bool better = false;
  for (int part = 0; part < problem.parts && problem.contiguous; ++part) {
    const std::vector<std::vector<int>> pieces = pieces_of(problem, part_of_group, part);
    if (pieces.size() < 2) {
      continue;
    }
    for (const std::vector<int>& piece : pieces) {
      if (std::any_of(
              piece.begin(), piece.end(), [&](int group) { return problem.placed[group] >= 0; })) {
        continue;
      }
      for (int to = 0; to < problem.parts; ++to) {
        std::vector<int> moved = part_of_group;
        for (const int group : piece) {
          moved[group] = to;
        }
        const Score other = problem.score(moved);
        if (other < score) {
          score = other;
          part_of_group = std::move(moved);
          better = true;
        }
      }
    }
  }
  return better;
}

} // namespace

void improve(const Problem& problem, std::vector<int>& part_of_group) {
  Score score = problem.score(part_of_group);
  bool better = true;
  // Gives these groups these parts where that is better.
  const auto attempt = [&](int a, int part_of_a, int b, int part_of_b) {
    if (problem.placed[a] >= 0 || problem.placed[b] >= 0) {
      return;
    }
    const int before_a = std::exchange(part_of_group[a], part_of_a);
    const int before_b = std::exchange(part_of_group[b], part_of_b);
    const Score other = problem.score(part_of_group);
    if (other < score) {
      score = other;
      better = true;
    } else {
      part_of_group[b] = before_b;
      part_of_group[a] = before_a;
    }
  };
  for (int pass = 0; pass < kMostPasses && better; ++pass) {
    better = join_pieces(problem, part_of_group, score);
    // A run of groups moves one after the other, from the end that is at the border: wishes may
    // have left long ones on either side.
    const bool back = problem.wished && pass % 2 == 1;
    for (int k = 0; k < problem.groups; ++k) {
      const int group = back ? problem.groups - 1 - k : k;
      for (int part = 0; part < problem.parts; ++part) {
        if (part != part_of_group[group]) {
          attempt(group, part, group, part);
        }
      }
    }
    for (const Problem::Net& net : problem.nets) { // neighbours that change places keep loads
      for (const int reader : net.readers) {
        if (part_of_group[reader] != part_of_group[net.producer]) {
          attempt(net.producer, part_of_group[reader], reader, part_of_group[net.producer]);
        }
      }
    }
  }
}

} // namespace tessera::operations
