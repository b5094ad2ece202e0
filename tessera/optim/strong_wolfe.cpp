#include "tessera/optim/strong_wolfe.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace tessera::optim {

namespace {

constexpr double kSufficientDecrease = 1e-4;
constexpr double kCurvature = 0.9;
constexpr int kMostRounds = 25;

/// Where the cubic through both points' losses and slopes is smallest inside
/// [low, high]; the middle when it has no minimum.
double cubic_minimum(const LinePoint& a, const LinePoint& b, double low, double high) {
  const LinePoint& left = a.t <= b.t ? a : b;
  const LinePoint& right = a.t <= b.t ? b : a;
  const double d1 = left.slope + right.slope - 3 * (left.loss - right.loss) / (left.t - right.t);
  const double square = d1 * d1 - left.slope * right.slope;
  if (!(square >= 0)) { // also when it is not a number
    return (low + high) / 2;
  }
  const double d2 = std::sqrt(square);
  const double minimum = right.t - (right.t - left.t) * ((right.slope + d2 - d1) /
                                                         (right.slope - left.slope + 2 * d2));
  return std::min(std::max(minimum, low), high);
}

class Search {
 public:
  Search(const LinePoint& start, double direction_size, double tolerance_change)
      : start_(start), direction_size_(direction_size), tolerance_change_(tolerance_change) {}

  LineSearchResult run(const std::function<LinePoint(double)>& evaluate, double first) {
    LinePoint point = evaluate(first);
    evaluations_ = 1;
    bracket(evaluate, std::move(point));
    zoom(evaluate);
    return {std::move(ends_[low_]), evaluations_};
  }

 private:
  bool decreases_too_little(const LinePoint& point) const {
    return point.loss > start_.loss + kSufficientDecrease * point.t * start_.slope;
  }
  bool is_flat_enough(const LinePoint& point) const {
    return std::abs(point.slope) <= -kCurvature * start_.slope;
  }

  LinePoint& low() {
    return ends_[low_];
  }
  LinePoint& high() {
    return ends_[1 - low_];
  }
  void set_bracket(LinePoint first, LinePoint second) {
    ends_ = {std::move(first), std::move(second)};
    choose_low();
  }
  // Of equal losses the first counts, as in torch: losses do tie near a minimum.
  void choose_low() {
    low_ = ends_[0].loss <= ends_[1].loss ? 0 : 1;
  }

  // Goes outwards until a minimum must lie between two points, or one will do.
  void bracket(const std::function<LinePoint(double)>& evaluate, LinePoint point) {
    LinePoint previous = start_;
    for (; rounds_ < kMostRounds; ++rounds_) {
      if (decreases_too_little(point) || (rounds_ > 1 && point.loss >= previous.loss)) {
        set_bracket(std::move(previous), std::move(point));
        return;
      }
      if (is_flat_enough(point)) {
        ends_[0] = std::move(point);
        done_ = true;
        return;
      }
      if (point.slope >= 0) {
        set_bracket(std::move(previous), std::move(point));
        return;
      }
      const double next =
          cubic_minimum(previous, point, point.t + 0.01 * (point.t - previous.t), point.t * 10);
      previous = std::move(point);
      point = evaluate(next);
      ++evaluations_;
    }
    set_bracket(start_, std::move(point));
  }

  /// Keeps a trial point off the ends of the bracket once it has come near an
  /// end twice, so that the bracket shrinks.
  double away_from_the_ends(double t, double least, double most) {
    const double margin = 0.1 * (most - least);
    if (std::min(most - t, t - least) >= margin) {
      near_end_ = false;
      return t;
    }
    if (!near_end_ && t < most && t > least) {
      near_end_ = true;
      return t;
    }
    near_end_ = false;
    return std::abs(t - most) < std::abs(t - least) ? most - margin : least + margin;
  }

  void zoom(const std::function<LinePoint(double)>& evaluate) {
    for (; !done_ && rounds_ < kMostRounds; ++rounds_) {
      if (std::abs(high().t - low().t) * direction_size_ < tolerance_change_) {
        return;
      }
      const double least = std::min(low().t, high().t);
      const double most = std::max(low().t, high().t);
      LinePoint point =
          evaluate(away_from_the_ends(cubic_minimum(ends_[0], ends_[1], least, most), least, most));
      ++evaluations_;
      if (decreases_too_little(point) || point.loss >= low().loss) {
        high() = std::move(point);
        choose_low();
        continue;
      }
      done_ = is_flat_enough(point);
      if (!done_ && point.slope * (high().t - low().t) >= 0) {
        high() = std::move(low());
      }
      low() = std::move(point);
    }
  }

  const LinePoint& start_;
  const double direction_size_;
  const double tolerance_change_;
  std::array<LinePoint, 2> ends_; // of the bracket
  int low_ = 0; // the end with the smaller loss
  int rounds_ = 0;
  int evaluations_ = 0;
  bool done_ = false;
  bool near_end_ = false;
};

} // namespace

LineSearchResult strong_wolfe(
    const std::function<LinePoint(double t)>& evaluate,
    const LinePoint& start,
    double first,
    double direction_size,
    double tolerance_change) {
  return Search(start, direction_size, tolerance_change).run(evaluate, first);
}

} // namespace tessera::optim
