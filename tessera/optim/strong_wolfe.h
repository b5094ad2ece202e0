#pragma once

#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>

namespace tessera::optim {

/// A point x + t d on the line that a search follows.
struct LinePoint {
  double t = 0;
  double loss = 0;
  double slope = 0; // derivative of the loss with respect to t
  std::vector<at::Tensor> gradient; // one tensor a parameter
};

struct LineSearchResult {
  LinePoint point;
  int evaluations = 0;
};

/// Finds a step length that satisfies the strong Wolfe conditions (c1 = 1e-4,
/// c2 = 0.9), by bracketing and then zooming with cubic interpolation, or the
/// best one found in 25 evaluations. All decisions follow from `loss`, `slope`
/// and the arguments, so ranks that pass equal numbers evaluate equally often.
///
/// `evaluate(t)`: the point at t. `start`: the point at t = 0, with a negative
/// slope. `first`: the step length to begin with, above 0. `direction_size`:
/// largest absolute element of the direction; the zoom ends when the bracket
/// times this is below `tolerance_change`.
/// Not collective but for what `evaluate` does. Threads: that of the caller.
/// Source: Nocedal and Wright 2006, algorithms 3.5 and 3.6; the constants and
/// safeguards are those of torch.optim.LBFGS.
LineSearchResult strong_wolfe(
    const std::function<LinePoint(double t)>& evaluate,
    const LinePoint& start,
    double first,
    double direction_size,
    double tolerance_change);

} // namespace tessera::optim
