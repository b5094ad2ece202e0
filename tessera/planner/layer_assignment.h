#pragma once

#include <functional>
#include <vector>

namespace tessera::planner {

/// What the assignment of layers to pipeline stages is decided on.
struct AssignmentProblem {
  int layers = 0;
  int stages = 0;
  int microbatches = 1;
  /// seconds[k][i]: one microbatch of the first i layers on the devices of
  /// stage k; ascending in i.
  std::vector<std::vector<double>> seconds;
  /// send_seconds[k][i]: the activation behind the first i layers, from stage k
  /// to k + 1; stages - 1 rows.
  std::vector<std::vector<double>> send_seconds;
  /// Least first layer of stage k that ends before `last`, by the memory of its
  /// devices: stage k can hold [a, last) for a >= first_that_fits(k, last).
  /// Must not fall with `last`. Empty: everything fits.
  std::function<int(int stage, int last)> first_that_fits = {};
};

struct Assignment {
  /// stages + 1 boundaries; empty when nothing fits.
  std::vector<int> boundaries;
  double seconds = 0;
};

/// The boundaries, every stage with a layer, that make the least
/// (m - 1) max_k max(t_k, e_k) + sum_k t_k + 2 sum_k e_k.
///
/// For a bound on the longest stage or transfer, a pass over the stages finds
/// the least sum in O(stages x layers): what may start a stage that ends at a
/// layer is a window that only moves forward, and a queue holds its minima.
/// The bound then falls to just below the longest stage of the answer, so that
/// only bounds which change the answer are tried, and the search ends where no
/// smaller bound can win. Where sums do not depend on the boundaries (equal
/// devices, equal transfers) that is after two passes.
///
/// Cost: O(stages x layers x (log + number of distinct optima)).
/// Source: Li et al. 2022, sections 3.5, equation (5); there O(k L^4).
Assignment assign_layers(const AssignmentProblem& problem);

} // namespace tessera::planner
