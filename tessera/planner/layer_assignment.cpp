#include "tessera/planner/layer_assignment.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tessera/base/error.h"
#include "tessera/base/index.h"

namespace tessera::planner {

namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// The answer under one bound: the least sum, and its longest stage or transfer.
struct Answer {
  double sum = kNever;
  double longest = 0;
  std::vector<int> boundaries;
};

class Passes {
 public:
  explicit Passes(const AssignmentProblem& problem)
      : problem_(problem),
        best_(at(problem.layers + 1)),
        next_(at(problem.layers + 1)),
        queue_(at(problem.layers + 1)),
        cut_(at(problem.stages), std::vector<int>(at(problem.layers + 1), -1)) {
    fits_.resize(at(problem.stages));
    for (int k = 0; k < problem.stages; ++k) {
      for (int last = 0; last <= problem.layers; ++last) {
        fits_[at(k)].push_back(problem.first_that_fits ? problem.first_that_fits(k, last) : 0);
      }
    }
  }

  // Finds the least sum with no stage and no transfer longer than `bound`.
  Answer run(double bound) {
    const int layers = problem_.layers;
    std::fill(best_.begin(), best_.end(), kNever);
    best_[0] = 0;
    for (int k = 0; k < problem_.stages; ++k) {
      if (is_mixed(k)) {
        mixed_stage(k, bound);
      } else {
        stage(k, bound);
      }
      best_.swap(next_);
    }
    Answer answer;
    answer.sum = best_[at(layers)];
    if (answer.sum == kNever) {
      return answer;
    }
    answer.boundaries.assign(at(problem_.stages + 1), layers);
    for (int k = problem_.stages; k-- > 0;) {
      answer.boundaries[at(k)] = cut_[at(k)][at(answer.boundaries[at(k) + 1])];
    }
    for (int k = 0; k < problem_.stages; ++k) {
      const int first = answer.boundaries[at(k)];
      const int last = answer.boundaries[at(k) + 1];
      answer.longest = std::max(answer.longest, seconds(k, first, last));
      if (k > 0) {
        answer.longest = std::max(answer.longest, sent(k, first));
      }
    }
    return answer;
  }

 private:
  double seconds(int k, int first, int last) const {
    const std::vector<double>& sums = problem_.seconds[at(k)];
    double longest = sums[at(last)] - sums[at(first)];
    if (is_mixed(k)) {
      for (const std::vector<double>& other : problem_.other_seconds[at(k)]) {
        longest = std::max(longest, other[at(last)] - other[at(first)]);
      }
    }
    return longest;
  }

  bool is_mixed(int k) const {
    return !problem_.other_seconds.empty() && !problem_.other_seconds[at(k)].empty();
  }

  // Tries every beginning for every end, since no sum of a stage's layers is a difference of two.
  void mixed_stage(int k, double bound) {
    std::fill(next_.begin(), next_.end(), kNever);
    const int later = problem_.stages - k - 1;
    for (int last = k + 1; last <= problem_.layers - later; ++last) {
      for (int first = std::max(k, fits_[at(k)][at(last)]); first < last; ++first) {
        const double sending = k > 0 ? sent(k, first) : 0.0;
        const double own = seconds(k, first, last);
        const double sum = best_[at(first)] + 2 * sending + own;
        if (own <= bound && sending <= bound && sum < next_[at(last)]) {
          next_[at(last)] = sum;
          cut_[at(k)][at(last)] = first;
        }
      }
    }
  }

  double sent(int k, int first) const {
    return problem_.send_seconds[at(k) - 1][at(first)];
  }

  void stage(int k, double bound) {
    const std::vector<double>& sums = problem_.seconds[at(k)];
    std::fill(next_.begin(), next_.end(), kNever);
    const int later = problem_.stages - k - 1; // stages that need a layer each
    std::size_t head = 0;
    std::size_t tail = 0;
    const auto value = [&](int first) {
      return best_[at(first)] - sums[at(first)] + (k > 0 ? 2 * sent(k, first) : 0.0);
    };
    for (int last = k + 1; last <= problem_.layers - later; ++last) {
      const int entering = last - 1;
      if (best_[at(entering)] < kNever && (k == 0 || sent(k, entering) <= bound)) {
        const double v = value(entering);
        while (tail > head && value(queue_[tail - 1]) >= v) {
          --tail;
        }
        queue_[tail++] = entering;
      }
      while (head < tail &&
             (seconds(k, queue_[head], last) > bound || queue_[head] < fits_[at(k)][at(last)])) {
        ++head;
      }
      if (head < tail) {
        next_[at(last)] = value(queue_[head]) + sums[at(last)];
        cut_[at(k)][at(last)] = queue_[head];
      }
    }
  }

  const AssignmentProblem& problem_;
  std::vector<double> best_;
  std::vector<double> next_;
  std::vector<int> queue_;
  std::vector<std::vector<int>> cut_;
  std::vector<std::vector<int>> fits_;
};

// Returns the least bound that has an answer, to a relative 1e-12.
double least_bound(Passes& passes, double high) {
  double low = 0;
  for (int i = 0; i < 60 && high - low > 1e-12 * high; ++i) {
    const double middle = low + (high - low) / 2;
    const Answer answer = passes.run(middle);
    if (answer.sum == kNever) {
      low = middle;
    } else {
      high = answer.longest;
    }
  }
  return high;
}

} // namespace

Assignment assign_layers(const AssignmentProblem& problem) {
  TESSERA_CHECK(problem.stages >= 1 && problem.layers >= 1 && problem.microbatches >= 1);
  Assignment result;
  if (problem.layers < problem.stages) {
    return result;
  }
  Passes passes(problem);
  Answer answer = passes.run(kNever);
  if (answer.sum == kNever) {
    return result;
  }
  const double weight = problem.microbatches - 1;
  const double least_sum = answer.sum;
  const double least = weight > 0 ? least_bound(passes, answer.longest) : answer.longest;
  result.seconds = kNever;
  const auto consider = [&](const Answer& candidate) {
    const double seconds = weight * candidate.longest + candidate.sum;
    if (seconds < result.seconds) {
      result.seconds = seconds;
      result.boundaries = candidate.boundaries;
    }
  };
  consider(answer);
  if (weight == 0) {
    return result;
  }
  consider(passes.run(least));
  // Try bounds downwards, from the largest that could still win. Sums grow as the
  // bound falls, so a sum that loses with the least bound ends the search.
  double bound = std::min(answer.longest, (result.seconds - least_sum) / weight * (1 + 1e-12));
  while (bound >= least) {
    answer = passes.run(bound);
    if (answer.sum == kNever) {
      break;
    }
    consider(answer);
    if (weight * least + answer.sum >= result.seconds) {
      break;
    }
    bound = std::nextafter(answer.longest, 0.0);
  }
  return result;
}

} // namespace tessera::planner
