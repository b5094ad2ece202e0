#include <algorithm>
#include <functional>

#include <ATen/ATen.h>

#include "cli/doctor/memory.h"
#include "cli/probe/probe.h"
#include "cli/stopwatch.h"

namespace tessera::cli::probe {

namespace {

using Points = std::vector<cost::MeasuredPoint>;

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

/// Runs in a second, over a fixed time: what is left of a machine that others
/// use too.
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

Points measure_products(at::ScalarType dtype, const Effort& effort) {
  constexpr double kLongS = 0.25;
  Points points;
  for (const std::int64_t size : {8, 16, 32, 64, 128, 256, 512, 1024}) {
    const at::Tensor a = at::randn({size, size}).to(dtype);
    const at::Tensor b = at::randn({size, size}).to(dtype);
    at::Tensor c = at::empty({size, size}, a.options());
    const double seconds =
        best_seconds([&] { at::matmul_out(c, a, b); }, effort.seconds_a_point);
    points.push_back({static_cast<double>(size), seconds});
    if (seconds * 8 > kLongS || (effort.quick && size == 512)) {
      break; // the next one takes eight times as long
    }
  }
  return points;
}

Points measure_elements(
    const std::function<void(const at::Tensor&)>& run,
    const Effort& effort) {
  Points points;
  for (std::int64_t size = 16; size <= std::int64_t{1} << 22; size *= 8) {
    const at::Tensor x = at::randn({size});
    const double seconds =
        best_seconds([&] { run(x); }, effort.seconds_a_point / 2);
    points.push_back({static_cast<double>(size), seconds});
  }
  return points;
}

cost::DeviceSpeed measure_device(const Effort& effort) {
  cost::DeviceSpeed speed;
  speed.products["f32"] = measure_products(at::kFloat, effort);
  speed.products["bf16"] = measure_products(at::kBFloat16, effort);
  speed.moves = measure_elements([](const at::Tensor& x) { x + x; }, effort);
  speed.functions =
      measure_elements([](const at::Tensor& x) { at::gelu(x); }, effort);
  speed.random = measure_elements(
      [](const at::Tensor& x) { at::dropout(x, 0.1, true); }, effort);
  return speed;
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
  const double window_s = 4 * effort.seconds_a_point;
  everyone.barrier();
  if (world.local_rank() == 0) {
    result.speed = measure_device(effort);
    result.alone_products_per_s = runs_per_s(product, window_s);
  }
  everyone.barrier();
  result.busy_products_per_s = runs_per_s(product, window_s);
  everyone.barrier();
  constexpr std::int64_t kElements = std::int64_t{4} << 20;
  const at::Tensor x = at::ones({kElements});
  at::Tensor sum = at::empty({kElements});
  constexpr double kBytes = 3.0 * 4 * kElements; // two read, one written
  result.busy_bytes_per_s =
      kBytes * runs_per_s([&] { at::add_out(sum, x, x); }, window_s);
  everyone.barrier();
  return result;
}

} // namespace tessera::cli::probe
