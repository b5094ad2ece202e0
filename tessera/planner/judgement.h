#pragma once

#include <functional>
#include <string>

#include "tessera/planner/strategies_csv.h"

namespace tessera::planner {

/// What measured runs say of their estimates. Errors are |estimate / measured - 1| of finished runs
/// that are estimated to run, whether or not they are estimated to fit.
struct Judgement {
  int runs = 0;
  int finished = 0;
  int refused = 0; // finished runs that are estimated not to run or to fit
  int accepted = 0; // failed runs that are estimated to run
  double spearman = 0; // of the finished runs
  double median_error = 0;
  double worst_decile_error = 0; // nine tenths of the runs have less
  double median_ratio = 0; // estimate to measured
  double memory_error = 0; // median; of the tensors on a device of the first stage, at the peak
  /// How much slower than the best finished run the run is that is estimated to be the fastest.
  double regret = 0;

  /// Returns the share of runs that finish and fail as estimated.
  double right() const {
    return runs == 0 ? 1 : 1 - static_cast<double>(refused + accepted) / runs;
  }
};

/// Compares the rows of a table for which `asked` holds with its columns `measured_s` ("inf": the
/// run failed) and `measured_gib` ("": not known). The regret takes the first estimate whose run
/// finished. Throws: ConfigError for a cell that is no number.
Judgement judge(const PricedTable& table, const std::function<bool(const PricedRow&)>& asked);

} // namespace tessera::planner
