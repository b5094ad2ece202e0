// Searches that need no other library: all divisions, and moves of single groups.
#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "tessera/base/error.h"
#include "tessera/operations/problem.h"

namespace tessera::operations {

namespace {

constexpr int kMostPasses = 20;

// Every division once: a group goes to a part that an earlier one is in, or to the next.
void for_each_division(
    const Problem& problem,
    const std::function<void(const std::vector<int>&)>& visit) {
  std::vector<int> part_of_group(problem.groups, 0);
  const std::function<void(int, int)> place = [&](int group, int used) {
    if (group == problem.groups) {
      visit(part_of_group);
      return;
    }
    for (int part = 0; part < std::min(used + 1, problem.parts); ++part) {
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

std::vector<int> try_all(Problem& problem) {
  TESSERA_CHECK(
      std::all_of(problem.placed.begin(), problem.placed.end(), [](int part) { return part < 0; }));
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
    better = false;
    for (int group = 0; group < problem.groups; ++group) {
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
