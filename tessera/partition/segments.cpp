#include "tessera/partition/segments.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tessera/base/error.h"

namespace tessera::partitioning {

namespace {

constexpr std::int64_t kImpossible = std::numeric_limits<std::int64_t>::max();

// Computes recursion (3) one row at a time: worst[i] = c(k, i) is the cost of the
// largest run, at its smallest, when the first i elements form k runs.
std::int64_t smallest_largest_run(const std::vector<std::int64_t>& costs, int segments) {
  const int count = static_cast<int>(costs.size());
  std::vector<std::int64_t> worst(count + 1, kImpossible);
  std::partial_sum(costs.begin(), costs.end(), worst.begin() + 1);
  for (int k = 2; k <= segments; ++k) {
    // Backwards, because worst[j] for j < i must still be that of k - 1.
    for (int i = count; i >= 0; --i) {
      std::int64_t best = kImpossible;
      std::int64_t run = 0;
      for (int j = i - 1; j >= k - 1; --j) {
        run += costs[j];
        best = std::min(best, std::max(worst[j], run));
        if (run >= best) {
          break; // a longer last run only costs more
        }
      }
      worst[i] = best;
    }
  }
  return worst[count];
}

} // namespace

std::int64_t cost_units(double cost) {
  return std::llround(cost * static_cast<double>(kCostUnits));
}

std::vector<int> split_evenly(const std::vector<std::int64_t>& costs, int segments) {
  const int count = static_cast<int>(costs.size());
  TESSERA_CHECK(segments >= 1 && segments <= count, segments, " runs of ", count);
  const std::int64_t limit = smallest_largest_run(costs, segments);
  // squares[i]: the least sum of squared runs when the first i elements form k runs,
  // none above the limit. It does not overflow, since it is at most kCostUnits squared.
  std::vector<std::int64_t> squares(count + 1, kImpossible);
  squares[0] = 0;
  std::vector<std::vector<int>> begin_of_last(segments + 1, std::vector<int>(count + 1, -1));
  for (int k = 1; k <= segments; ++k) {
    for (int i = count; i >= 0; --i) {
      std::int64_t best = kImpossible;
      std::int64_t run = 0;
      for (int j = i - 1; j >= k - 1; --j) {
        run += costs[j];
        if (run > limit) {
          break;
        }
        if (squares[j] == kImpossible) {
          continue;
        }
        // On a tie the smaller j wins, which makes later runs the longer ones.
        if (squares[j] + run * run <= best) {
          best = squares[j] + run * run;
          begin_of_last[k][i] = j;
        }
      }
      squares[i] = best;
    }
  }
  std::vector<int> begins(segments + 1, count);
  for (int k = segments; k >= 1; --k) {
    begins[k - 1] = begin_of_last[k][begins[k]];
  }
  return begins;
}

} // namespace tessera::partitioning
