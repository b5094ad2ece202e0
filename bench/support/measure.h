#pragma once

#include <algorithm>
#include <chrono>
#include <ctime>
#include <functional>
#include <vector>

/// Times of the benchmarks that run whole steps.
namespace tessera::bench {

/// Units: milliseconds.
inline double milliseconds_of(const std::function<void()>& run) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  run();
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// What this process's threads computed so far: unlike the time that passed, it
/// does not grow when other programs take the processor. Units: milliseconds.
inline double processor_ms() {
  std::timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) / 1e6;
}

/// `times` is not empty. Other load on the machine only ever adds time, so the
/// best says most; the median says how much was added. Units: milliseconds.
struct Summary {
  double best = 0;
  double median = 0;
};

inline Summary summary_of(std::vector<double> times) {
  std::sort(times.begin(), times.end());
  return {times.front(), times[times.size() / 2]};
}

} // namespace tessera::bench
