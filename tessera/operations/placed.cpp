// Divisions to begin a search from where a script has placed some groups.
#include <algorithm>

#include "tessera/operations/problem.h"

namespace tessera::operations {

void fit_to_placed(const Problem& problem, std::vector<int>& part_of_group) {
  std::vector<std::vector<int>> fits(problem.parts, std::vector<int>(problem.parts, 0));
  for (int group = 0; group < problem.groups; ++group) {
    if (problem.placed[group] >= 0) {
      ++fits[part_of_group[group]][problem.placed[group]];
    }
  }
  std::vector<int> name(problem.parts, -1); // by part, what it is called
  std::vector<bool> taken(problem.parts, false);
  for (int count = 0; count < problem.parts; ++count) {
    int best_part = -1;
    int best_name = -1;
    for (int part = 0; part < problem.parts; ++part) {
      for (int to = 0; to < problem.parts && name[part] < 0; ++to) {
        if (!taken[to] && (best_part < 0 || fits[part][to] > fits[best_part][best_name])) {
          best_part = part;
          best_name = to;
        }
      }
    }
    name[best_part] = best_name;
    taken[best_name] = true;
  }
  for (int group = 0; group < problem.groups; ++group) {
    part_of_group[group] =
        problem.placed[group] >= 0 ? problem.placed[group] : name[part_of_group[group]];
  }
}

namespace {

constexpr int kFar = 1 << 30;

/// Parts that grow from their groups over the neighbours of these.
class Growth {
 public:
  explicit Growth(const Problem& problem)
      : problem_(problem), part_of_group_(problem.placed), done_(problem.parts, false) {}

  // A part of which nothing is placed begins as far from all others as it can.
  void begin_empty_parts() {
    for (int part = 0; part < problem_.parts; ++part) {
      if (std::find(part_of_group_.begin(), part_of_group_.end(), part) == part_of_group_.end()) {
        const std::vector<int> steps = steps_to_taken();
        const auto far = std::max_element(steps.begin(), steps.end());
        if (*far > 0) {
          part_of_group_[far - steps.begin()] = part;
        }
      }
    }
  }

  // The part with the least load takes a free neighbour, for as long as one has some.
  void grow() {
    while (!std::all_of(done_.begin(), done_.end(), [](bool done) { return done; })) {
      const int part = lightest();
      const int group = free_neighbour(part);
      if (group < 0) {
        done_[part] = true;
      } else {
        part_of_group_[group] = part;
      }
    }
    std::fill(done_.begin(), done_.end(), false);
    for (int& part : part_of_group_) { // of no piece with a placed group
      part = part < 0 ? lightest() : part;
    }
  }

  std::vector<int> take() {
    return std::move(part_of_group_);
  }

 private:
  std::vector<int> steps_to_taken() const {
    std::vector<int> steps(problem_.groups, kFar);
    std::vector<int> open;
    for (int group = 0; group < problem_.groups; ++group) {
      if (part_of_group_[group] >= 0) {
        steps[group] = 0;
        open.push_back(group);
      }
    }
    for (std::size_t k = 0; k < open.size(); ++k) {
      for (const int other : problem_.neighbours[open[k]]) {
        if (steps[other] == kFar) {
          steps[other] = steps[open[k]] + 1;
          open.push_back(other);
        }
      }
    }
    return steps;
  }

  double load(int part) const {
    double most = 0;
    for (const std::vector<double>& weights : problem_.weights) {
      double sum = 0;
      for (int group = 0; group < problem_.groups; ++group) {
        sum += part_of_group_[group] == part ? weights[group] : 0;
      }
      most = std::max(most, sum);
    }
    return most;
  }

  int lightest() const {
    int best = -1;
    double least = 0;
    for (int part = 0; part < problem_.parts; ++part) {
      const double own = load(part);
      if (!done_[part] && (best < 0 || own < least)) {
        best = part;
        least = own;
      }
    }
    return best;
  }

  int free_neighbour(int part) const {
    for (int group = 0; group < problem_.groups; ++group) {
      const std::vector<int>& near = problem_.neighbours[group];
      if (part_of_group_[group] < 0 && std::any_of(near.begin(), near.end(), [&](int other) {
            return part_of_group_[other] == part;
          })) {
        return group;
      }
    }
    return -1;
  }

  const Problem& problem_;
  std::vector<int> part_of_group_;
  std::vector<bool> done_;
};

} // namespace

std::vector<int> grow_from_placed(const Problem& problem) {
  Growth growth(problem);
  growth.begin_empty_parts();
  growth.grow();
  return growth.take();
}

} // namespace tessera::operations
