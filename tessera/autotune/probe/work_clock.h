#pragma once

#include <chrono>
#include <ctime>

#include <ATen/Parallel.h>

#include "tessera/base/stopwatch.h"

namespace tessera::autotune {

/// Seconds in which this thread worked since a moment. A quota of processor
/// time stops a long run in its middle, and other programs take its turn:
/// neither is part of what an operator costs. With several threads, which wait
/// for each other, it is the time that passed.
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
