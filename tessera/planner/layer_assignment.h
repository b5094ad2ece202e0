#pragma once

#include <functional>
#include <vector>

namespace tessera::planner {

/// The data from which layers are assigned to pipeline stages.
struct AssignmentProblem {
  int layers = 0;
  int stages = 0;
  int microbatches = 1;
  /// seconds[k][i]: what one microbatch takes in the first i layers on the devices
  /// of stage k; ascending in i.
  std::vector<std::vector<double>> seconds;
  /// other_seconds[k]: the same for further devices of stage k, each of which may be the slowest
  /// for some layers; a stage takes as long as the slowest of all. Empty, or one entry a stage.
  std::vector<std::vector<std::vector<double>>> other_seconds = {};
  /// send_seconds[k][i]: what the activation behind the first i layers takes from
  /// stage k to k + 1; stages - 1 rows.
  std::vector<std::vector<double>> send_seconds;
  /// Says which layers fit into the memory of stage k: it can hold [a, last) for
  /// a >= first_that_fits(k, last). The result must not fall as `last` grows.
  /// Empty: everything fits.
  std::function<int(int stage, int last)> first_that_fits = {};
};

struct Assignment {
  /// stages + 1 boundaries; empty when nothing fits.
  std::vector<int> boundaries;
  double seconds = 0;
};

/// Returns the boundaries, with a layer at least in every stage, that minimize
/// (m - 1) max_k max(t_k, e_k) + sum_k t_k + 2 sum_k e_k, where t_k are the seconds
/// of stage k and e_k those of its transfer to the next stage.
///
/// Given a bound on the longest stage or transfer, one pass over the stages finds
/// the least sum in O(stages x layers): the layers at which a stage may begin that
/// ends at a given layer form a window that only moves forward, and a monotonic
/// queue holds its minimum. The next bound is just below the longest stage of the
/// last answer, so only bounds that change the answer are tried; the search ends
/// when no smaller bound can win. If the sums do not depend on the boundaries
/// (equal devices, equal transfers), two passes are enough.
///
/// A stage with several devices has no such window, so every beginning is tried for each end:
/// O(layers^2) for the stage.
///
/// Cost: O(stages x layers x (log(1e12) + number of distinct optima)).
/// Throws: InternalError unless layers, stages and microbatches are 1 or more.
/// Source: Li et al. 2022, section 3.5, equation (5); the paper needs O(k L^4).
Assignment assign_layers(const AssignmentProblem& problem);

} // namespace tessera::planner
