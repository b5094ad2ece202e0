#include <algorithm>
#include <functional>

#include <ATen/ATen.h>

#include "cli/doctor/memory.h"
#include "cli/probe/probe.h"
#include "cli/probe/rounds.h"
#include "cli/stopwatch.h"

namespace tessera::cli::probe {

namespace {

// Further rounds for points in doubt.
constexpr int kMostExtraRounds = 4;

/// Runs in a second, over a fixed time: what is left of a machine that others
/// use too, or that a quota of processor time holds back.
double runs_per_s(const std::function<void()>& run, double budget_s) {
  run();
  int runs = 0;
  const auto begin = Clock::now();
  do {
    run();
    ++runs;
  } while (seconds_since(begin) < budget_s);
  return runs / seconds_since(begin);
}

/// The shortest of many runs: other programs only add. Runs are repeated within
/// one reading of the clock until they outlast its resolution.
double best_seconds(const std::function<void()>& run, double budget_s) {
  constexpr double kLongEnough = 20e-6;
  run();
  int repeats = 1;
  double best = 1e30;
  const auto begin = Clock::now();
  do {
    const auto start = Clock::now();
    for (int i = 0; i < repeats; ++i) {
      run();
    }
    const double seconds = seconds_since(start);
    best = std::min(best, seconds / repeats);
    if (seconds < kLongEnough) {
      repeats *= 2;
    }
  } while (seconds_since(begin) < budget_s);
  return best;
}

/// A series and what runs each of its points.
struct Measured {
  Series series;
  std::vector<std::function<void()>> runs;
  double budget_s = 0; // of one round of one point

  void once(std::size_t i) {
    series.points[i].add(best_seconds(runs[i], budget_s));
  }
};

Measured products_of(at::ScalarType dtype, const Effort& effort) {
  constexpr double kLongS = 0.25;
  Measured result;
  result.series.exponent = 3;
  // Larger products run at higher rates until caches are full.
  result.series.slowdown = 2;
  result.budget_s = effort.seconds_a_point / effort.rounds;
  for (const std::int64_t size : {8, 16, 32, 64, 128, 256, 512, 1024}) {
    const at::Tensor a = at::randn({size, size}).to(dtype);
    const at::Tensor b = at::randn({size, size}).to(dtype);
    const at::Tensor c = at::empty({size, size}, a.options());
    result.runs.emplace_back([a, b, c] {
      at::Tensor out = c;
      at::matmul_out(out, a, b);
    });
    result.series.add_size(static_cast<double>(size));
    result.once(result.runs.size() - 1);
    const double seconds = result.series.points.back().best();
    if (seconds * 8 > kLongS || (effort.quick && size == 512)) {
      break; // the next one takes eight times as long
    }
  }
  return result;
}

Measured elements_of(
    const std::function<void(const at::Tensor&)>& run,
    const Effort& effort) {
  Measured result;
  // What leaves the caches slows down.
  result.series.slowdown = 6;
  result.budget_s = effort.seconds_a_point / 2 / effort.rounds;
  for (std::int64_t size = 16; size <= std::int64_t{1} << 22; size *= 8) {
    const at::Tensor x = at::randn({size});
    result.runs.emplace_back([run, x] { run(x); });
    result.series.add_size(static_cast<double>(size));
    result.once(result.runs.size() - 1);
  }
  return result;
}

/// All series in rounds, one point of each after the other, so that a burst of
/// foreign load meets one round of a point and not all of them. Points in doubt
/// get further rounds.
void measure_device(const Effort& effort, RankMeasurement& result) {
  std::vector<Measured> all;
  all.push_back(products_of(at::kFloat, effort));
  all.push_back(products_of(at::kBFloat16, effort));
  all.push_back(elements_of([](const at::Tensor& x) { x + x; }, effort));
  all.push_back(elements_of([](const at::Tensor& x) { at::gelu(x); }, effort));
  all.push_back(elements_of(
      [](const at::Tensor& x) { at::dropout(x, 0.1, true); }, effort));
  for (int round = 1; round < effort.rounds; ++round) {
    for (Measured& one : all) {
      for (std::size_t i = 0; i < one.runs.size(); ++i) {
        one.once(i);
      }
    }
  }
  for (int extra = 0; extra < kMostExtraRounds; ++extra) {
    for (Measured& one : all) {
      for (const std::size_t i : doubtful(one.series)) {
        one.once(i);
        ++result.repeated;
      }
    }
  }
  result.speed.products["f32"] = all[0].series.measured();
  result.speed.products["bf16"] = all[1].series.measured();
  result.speed.moves = all[2].series.measured();
  result.speed.functions = all[3].series.measured();
  result.speed.random = all[4].series.measured();
  for (const Measured& one : all) {
    for (const Rounds& point : one.series.points) {
      result.spread = std::max(result.spread, point.spread());
    }
  }
}

/// A quota of processor time lets short runs through at full speed and stops
/// long ones: what `share` of that speed lasts.
void slow_down(cost::DeviceSpeed& speed, double share) {
  std::vector<std::vector<cost::MeasuredPoint>*> all = {
      &speed.moves, &speed.functions, &speed.random};
  for (auto& [precision, points] : speed.products) {
    all.push_back(&points);
  }
  for (auto* points : all) {
    for (cost::MeasuredPoint& point : *points) {
      point.seconds /= share;
    }
  }
}

double free_bytes_of_rank(const comm::World& world) {
  const doctor::MemoryFacts memory = doctor::memory_facts();
  std::int64_t free = memory.available;
  if (memory.group_limit) {
    free = std::min(free, *memory.group_limit - memory.group_used.value_or(0));
  }
  return static_cast<double>(free) / world.local_size();
}

} // namespace

RankMeasurement measure_speed(
    comm::World& world,
    comm::ProcessGroup& everyone,
    const Effort& effort) {
  const at::NoGradGuard no_grad;
  RankMeasurement result;
  result.host = world.hosts()[static_cast<std::size_t>(world.rank())];
  result.processor = doctor::processor_name();
  result.free_bytes = free_bytes_of_rank(world);
  const at::Tensor a = at::randn({256, 256});
  at::Tensor c = at::empty({256, 256});
  const auto product = [&] { at::matmul_out(c, a, a); };
  constexpr std::int64_t kElements = std::int64_t{4} << 20;
  const at::Tensor x = at::ones({kElements});
  at::Tensor sum = at::empty({kElements});
  const auto move = [&] { at::add_out(sum, x, x); };
  constexpr double kBytes = 3.0 * 4 * kElements; // two read, one written
  // Quotas are given out every tenth of a second as a rule.
  const double window_s = std::max(0.12, 4 * effort.seconds_a_point);
  const bool first = world.local_rank() == 0;
  everyone.barrier();
  double at_its_best_s = 0;
  if (first) {
    measure_device(effort, result);
    at_its_best_s = best_seconds(product, effort.seconds_a_point);
  }
  for (int round = 0; round < effort.rounds; ++round) {
    everyone.barrier();
    if (first) {
      result.alone_products_per_s =
          std::max(result.alone_products_per_s, runs_per_s(product, window_s));
    }
    everyone.barrier();
    result.busy_products_per_s =
        std::max(result.busy_products_per_s, runs_per_s(product, window_s));
    everyone.barrier();
    result.busy_bytes_per_s = std::max(
        result.busy_bytes_per_s, kBytes * runs_per_s(move, window_s / 2));
  }
  everyone.barrier();
  constexpr double kHeldBack = 0.9;
  const double share = result.alone_products_per_s * at_its_best_s;
  if (first && share < kHeldBack) {
    slow_down(result.speed, share);
  }
  return result;
}

} // namespace tessera::cli::probe
