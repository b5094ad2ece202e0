#include "tessera/timeline/timeline.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "tessera/timeline/intervals.h"

namespace tessera::timeline {

namespace {

bool computes(const Event& event) {
  return event.category == "forward" || event.category == "backward";
}

struct Lane {
  std::vector<Interval> compute;
  std::vector<Interval> wait;
};

struct Step {
  Interval span; // from the first start to the last end of a forward or backward event
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

/// Returns the time in which ranks ran a forward or backward, summed over ranks.
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
