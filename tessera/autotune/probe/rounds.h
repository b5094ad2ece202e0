#pragma once

#include <cstddef>
#include <limits>
#include <vector>

#include "tessera/cost/device_speed.h"

namespace tessera::autotune {

/// One quantity, measured in several rounds that lie apart in time. Other
/// programs only add time, so the least is the best known.
class Rounds {
 public:
  void add(double seconds);

  double best() const {
    return best_;
  }
  /// How far the second best round is from the best, as a share of the best:
  /// two rounds that agree are believed. Infinite with fewer than two.
  double spread() const;

 private:
  double best_ = std::numeric_limits<double>::infinity();
  double second_ = std::numeric_limits<double>::infinity();
};

/// Rounds further apart than this share are repeated.
constexpr double kAgreement = 0.2;

/// One operation at ascending sizes.
struct Series {
  std::vector<double> sizes;
  std::vector<Rounds> points;
  /// Work grows with size to this power; a larger size is expected to be done
  /// at no less than 1 / `slowdown` of the rate of the one before it.
  double exponent = 1;
  double slowdown = 1;

  void add_size(double size);
  /// The best of every size, and no more than its neighbours allow, whatever
  /// load there was.
  std::vector<cost::MeasuredPoint> measured() const;
};

/// Points that another round may mend: their rounds disagree, or they are out
/// of line with the size before or behind them.
std::vector<std::size_t> doubtful(const Series& series);

} // namespace tessera::autotune
