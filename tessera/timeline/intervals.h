#pragma once

#include <vector>

namespace tessera::timeline {

/// A half-open interval with start <= end. Units: microseconds.
struct Interval {
  double start = 0;
  double end = 0;
};

/// Returns the same points in time as sorted intervals that do not overlap. Intervals at most `gap`
/// apart are merged.
std::vector<Interval> united(std::vector<Interval> intervals, double gap = 0);

/// Returns `from` without `holes`. Both arguments are as `united` returns them.
std::vector<Interval> without(
    const std::vector<Interval>& from,
    const std::vector<Interval>& holes);

} // namespace tessera::timeline
