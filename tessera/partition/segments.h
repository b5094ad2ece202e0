#pragma once

#include <cstdint>
#include <vector>

namespace tessera::partitioning {

/// Costs are compared as whole numbers of this share of the root's cost, so that sums do not depend
/// on their order and equal layers are equal. The share is 2^-30, about one parameter in a billion.
inline constexpr std::int64_t kCostUnits = std::int64_t{1} << 30;

/// Returns a normalized cost in whole units, rounded.
std::int64_t cost_units(double cost);

/// Splits a sequence into exactly `segments` runs of consecutive elements, none empty, such that
/// the largest cost of a run is as small as possible. Among those splits it takes the most even one
/// (least sum of squares), then the one whose earlier runs are shorter. Returns the beginning of
/// each run, and the length of the sequence as the last entry.
///
/// Requires 1 <= segments <= costs.size(), costs >= 0, their sum <= kCostUnits.
/// Cost: segments * n^2 steps at most, n = costs.size().
/// Source: Karakus et al. 2021, appendix C.4, problem (2) by recursion (3). The sum in (3) runs
/// over the elements j .. i; "from j onwards" as printed would not solve (2). Empty runs never
/// lower the maximum, so leaving them out loses nothing.
std::vector<int> split_evenly(const std::vector<std::int64_t>& costs, int segments);

} // namespace tessera::partitioning
