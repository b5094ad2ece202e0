#include "tessera/timeline/timeline.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace tessera::timeline {

namespace {

struct Interval {
  double start = 0;
  double end = 0;
};

bool computes(const Event& event) {
  return event.category == "forward" || event.category == "backward";
}

/// Sorted, without overlaps.
std::vector<Interval> united(std::vector<Interval> intervals) {
  std::sort(
      intervals.begin(),
      intervals.end(),
      [](const Interval& a, const Interval& b) { return a.start < b.start; });
  std::vector<Interval> result;
  for (const Interval& next : intervals) {
    if (!result.empty() && next.start <= result.back().end) {
      result.back().end = std::max(result.back().end, next.end);
    } else {
      result.push_back(next);
    }
  }
  return result;
}

/// `from` without `holes`; both united.
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

struct Lane {
  std::vector<Interval> compute;
  std::vector<Interval> wait;
};

struct Step {
  Interval span; // of its computation
  bool computes = false;
  std::map<int, std::map<int, Lane>> ranks; // rank -> lane -> what ran there
};

void add(Step& step, const Event& event) {
  const Interval interval{event.start_us, event.end_us};
  Lane& lane = step.ranks[event.rank][event.lane];
  if (event.category == "wait") {
    lane.wait.push_back(interval);
  }
  if (!computes(event)) {
    return;
  }
  lane.compute.push_back(interval);
  if (!step.computes) {
    step.span = interval;
    step.computes = true;
  }
  step.span.start = std::min(step.span.start, interval.start);
  step.span.end = std::max(step.span.end, interval.end);
}

/// Summed over ranks.
double busy_us(const Step& step) {
  double total = 0;
  for (const auto& rank : step.ranks) {
    std::vector<Interval> busy;
    for (const auto& entry : rank.second) {
      const Lane& lane = entry.second;
      const auto running = without(united(lane.compute), united(lane.wait));
      busy.insert(busy.end(), running.begin(), running.end());
    }
    for (const Interval& interval : united(std::move(busy))) {
      total += interval.end - interval.start;
    }
  }
  return total;
}

} // namespace

double bubble_share(const Timeline& timeline, int step) {
  std::set<int> ranks;
  std::map<int, Step> steps;
  for (const Event& event : timeline.events) {
    ranks.insert(event.rank);
    if (step < 0 || event.step == step) {
      add(steps[event.step], event);
    }
  }
  double span = 0;
  double busy = 0;
  for (const auto& entry : steps) {
    span += entry.second.span.end - entry.second.span.start;
    busy += busy_us(entry.second);
  }
  const double total = span * static_cast<double>(ranks.size());
  return total > 0 ? std::max(0.0, 1 - busy / total) : 0.0;
}

std::vector<int> steps(const Timeline& timeline) {
  std::set<int> found;
  for (const Event& event : timeline.events) {
    if (event.step >= 0) {
      found.insert(event.step);
    }
  }
  return {found.begin(), found.end()};
}

} // namespace tessera::timeline
