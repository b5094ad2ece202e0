#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <vector>

/// Times of the benchmarks that run whole steps.
namespace tessera::bench {

/// Units: milliseconds.
inline double milliseconds_of(const std::function<void()>& run) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  run();
  return std::chrono::duration<double, std::milli>(Clock::now() - start)
      .count();
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
