#include "tessera/timeline/intervals.h"

#include <algorithm>

namespace tessera::timeline {

std::vector<Interval> united(std::vector<Interval> intervals, double gap) {
  std::sort(intervals.begin(), intervals.end(), [](const Interval& a, const Interval& b) {
    return a.start < b.start;
  });
  std::vector<Interval> result;
  for (const Interval& next : intervals) {
    if (!result.empty() && next.start <= result.back().end + gap) {
      result.back().end = std::max(result.back().end, next.end);
    } else {
      result.push_back(next);
    }
  }
  return result;
}

std::vector<Interval> without(
    const std::vector<Interval>& from,
    const std::vector<Interval>& holes) {
  std::vector<Interval> result;
  auto hole = holes.begin();
  for (Interval rest : from) {
    while (hole != holes.end() && hole->end <= rest.start) {
      ++hole;
    }
    for (auto cut = hole; cut != holes.end() && cut->start < rest.end; ++cut) {
      if (cut->start > rest.start) {
        result.push_back({rest.start, cut->start});
      }
      rest.start = std::max(rest.start, cut->end);
    }
    if (rest.start < rest.end) {
      result.push_back(rest);
    }
  }
  return result;
}

} // namespace tessera::timeline
