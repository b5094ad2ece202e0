#include "tessera/autotune/probe/rounds.h"

#include <algorithm>
#include <cmath>

namespace tessera::autotune {

void Rounds::add(double seconds) {
  second_ = std::min(second_, std::max(seconds, best_));
  best_ = std::min(best_, seconds);
}

double Rounds::spread() const {
  return std::isfinite(second_) ? (second_ - best_) / best_
                                : std::numeric_limits<double>::infinity();
}

void Series::add_size(double size) {
  sizes.push_back(size);
  points.emplace_back();
}

std::vector<cost::MeasuredPoint> Series::measured() const {
  std::vector<cost::MeasuredPoint> result;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    result.push_back({sizes[i], points[i].best()});
  }
  // A smaller size takes no longer than a larger one.
  for (std::size_t i = result.size(); i-- > 1;) {
    result[i - 1].seconds = std::min(result[i - 1].seconds, result[i].seconds);
  }
  // A larger size takes no longer than its work at the slowed rate of the size before it.
  for (std::size_t i = 1; i < result.size(); ++i) {
    result[i].seconds = std::min(
        result[i].seconds,
        result[i - 1].seconds * slowdown * std::pow(sizes[i] / sizes[i - 1], exponent));
  }
  return result;
}

std::vector<std::size_t> doubtful(const Series& series) {
  // A smaller size may take this much longer than the next one by noise of the clock.
  constexpr double kLonger = 1.2;
  std::vector<std::size_t> result;
  for (std::size_t i = 0; i < series.points.size(); ++i) {
    const double seconds = series.points[i].best();
    bool doubt = series.points[i].spread() > kAgreement;
    if (i > 0) {
      const double growth = series.sizes[i] / series.sizes[i - 1];
      doubt = doubt || seconds > series.points[i - 1].best() * std::pow(growth, series.exponent) *
                                     series.slowdown;
    }
    if (i + 1 < series.points.size()) {
      doubt = doubt || seconds > kLonger * series.points[i + 1].best();
    }
    if (doubt) {
      result.push_back(i);
    }
  }
  return result;
}

} // namespace tessera::autotune
