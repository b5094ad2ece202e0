#pragma once

#include <vector>

namespace tessera::timeline {

/// Half open, start <= end. Units: microseconds.
struct Interval {
  double start = 0;
  double end = 0;
};

/// The same points in time, sorted and without overlaps; intervals that are at
/// most `gap` apart become one.
std::vector<Interval> united(std::vector<Interval> intervals, double gap = 0);

/// `from` without `holes`; both as `united` returns them.
std::vector<Interval> without(
    const std::vector<Interval>& from,
    const std::vector<Interval>& holes);

} // namespace tessera::timeline
