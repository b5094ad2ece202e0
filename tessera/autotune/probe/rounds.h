#pragma once

#include <cstddef>
#include <limits>
#include <vector>

#include "tessera/cost/device_speed.h"

namespace tessera::autotune {

/// One quantity, measured in several rounds at different times. Other programs only
/// add time, so the least seconds are the best estimate.
class Rounds {
 public:
  void add(double seconds);

  double best() const {
    return best_;
  }
  /// Returns the difference between the two best rounds as a share of the best; infinity
  /// with fewer than two rounds. A small one means that the best can be trusted.
  double spread() const;

 private:
  double best_ = std::numeric_limits<double>::infinity();
  double second_ = std::numeric_limits<double>::infinity();
};

/// Other programs that use more than so many processors are load: less is what every system does.
constexpr double kForeignLoad = 0.15;

/// Rounds further apart than this share are repeated.
constexpr double kAgreement = 0.2;

/// One operation, measured at ascending sizes.
struct Series {
  std::vector<double> sizes;
  std::vector<Rounds> points;
  /// Work grows as size^exponent, and the rate of work is expected to fall at most by the
  /// factor `slowdown` from one size to the next.
  double exponent = 1;
  double slowdown = 1;

  void add_size(double size);
  /// Returns the best of every size, lowered to what the neighbouring sizes allow. That
  /// corrects points of which all rounds met other load.
  std::vector<cost::MeasuredPoint> measured() const;
};

/// Returns the indices of points that need another round: their rounds disagree, or
/// they do not fit to the size before or after them.
std::vector<std::size_t> doubtful(const Series& series);

} // namespace tessera::autotune
