#pragma once

#include <chrono>
#include <ctime>

#include <ATen/Parallel.h>

#include "tessera/base/stopwatch.h"

namespace tessera::autotune {

/// Measures the processor time of this thread since its construction. Wall time would
/// include pauses that are no part of an operator's cost: those by a quota of
/// processor time, and those in which other programs run. If operators use several
/// threads, which wait for each other, it measures wall time nevertheless.
class WorkClock {
 public:
  double seconds() const {
    return at::get_num_threads() > 1 ? seconds_since(begin_)
                                     : processor_seconds() - processor_begin_;
  }

 private:
  static double processor_seconds() {
    timespec now{};
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * now.tv_nsec;
  }

  Clock::time_point begin_ = Clock::now();
  double processor_begin_ = processor_seconds();
};

} // namespace tessera::autotune
