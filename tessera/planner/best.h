#pragma once

// Private to the planner.

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "tessera/planner/candidate.h"

namespace tessera::planner {

/// Holds the best strategies so far by estimate, at most `keep` (1 or more) of them.
class Best {
 public:
  /// With `below`, only strategies of fewer seconds.
  explicit Best(int keep, double below = std::numeric_limits<double>::infinity())
      : keep_(static_cast<std::size_t>(keep)), below_(below) {}

  void add(Candidate candidate) {
    if (candidate.cost.seconds >= below_) {
      return;
    }
    const auto place = std::upper_bound(
        candidates_.begin(),
        candidates_.end(),
        candidate.cost.seconds,
        [](double seconds, const Candidate& other) { return seconds < other.cost.seconds; });
    candidates_.insert(place, std::move(candidate));
    if (candidates_.size() > keep_) {
      candidates_.pop_back();
    }
  }

  /// Returns the seconds that a further strategy must beat; `below` while there is room.
  double worst() const {
    if (candidates_.size() < keep_) {
      return below_;
    }
    return candidates_.back().cost.seconds;
  }

  /// Returns the seconds of the best; infinity when there is none.
  double best() const {
    if (candidates_.empty()) {
      return std::numeric_limits<double>::infinity();
    }
    return candidates_.front().cost.seconds;
  }

  /// Returns the strategies, fastest first.
  std::vector<Candidate>& candidates() {
    return candidates_;
  }

 private:
  std::size_t keep_;
  double below_;
  std::vector<Candidate> candidates_;
};

} // namespace tessera::planner
