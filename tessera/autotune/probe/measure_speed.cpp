#include <algorithm>
#include <functional>

#include <torch/torch.h>

#include <sched.h>

#include "tessera/autotune/probe/probe.h"
#include "tessera/autotune/probe/rounds.h"
#include "tessera/autotune/probe/within_layers.h"
#include "tessera/base/host.h"
#include "tessera/base/stopwatch.h"
#include "tessera/cost/constants.h"

namespace tessera::autotune {

namespace {

/// Returns runs per second over a fixed wall time, which includes what other programs
/// and a quota of processor time take away.
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

/// Returns the shortest of many runs, because other programs only add time. Short runs
/// are repeated within one reading until it is long enough for the clock's resolution.
double best_seconds(const std::function<void()>& run, double budget_s) {
  constexpr double kLongEnough = 20e-6;
  constexpr int kLeast = 3;
  run();
  int repeats = 1;
  int timed = 0;
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
    ++timed;
  } while (timed < kLeast || seconds_since(begin) < budget_s);
  return best;
}

/// Returns the runs per second that last, measured in windows until the two best agree,
/// as windows under a quota do.
double lasting_runs_per_s(
    const std::function<void()>& run,
    double window_s,
    const Effort& effort,
    RankMeasurement& result) {
  constexpr int kMostWindows = 10;
  Rounds lasting;
  for (int window = 0; window < kMostWindows; ++window) {
    if (window >= effort.rounds) {
      if (lasting.spread() <= kAgreement / 2) {
        break;
      }
      ++result.repeated;
    }
    lasting.add(1 / runs_per_s(run, window_s));
  }
  result.spread = std::max(result.spread, lasting.spread());
  return 1 / lasting.best();
}

/// Returns the share of full speed that lasts, at most 1. Full speed is that of runs
/// which are much shorter than the time that a quota grants at once.
double lasting_share(double window_s, const Effort& effort, RankMeasurement& result) {
  constexpr std::int64_t kSize = 64;
  constexpr double kHeldBack = 0.9;
  constexpr double kManyQuotas = 6; // in windows
  const at::Tensor factor = at::randn({kSize, kSize});
  at::Tensor product = at::empty({kSize, kSize});
  const auto run = [&] { at::mm_out(product, factor, factor); };
  const double best_s = best_seconds(run, effort.seconds_a_point);
  const auto share = [&](double seconds) {
    return std::min(1.0, best_s * lasting_runs_per_s(run, seconds, effort, result));
  };
  const double found = share(window_s);
  // A window that begins or ends within a period of the quota counts part of it too much, which
  // matters less in a longer one.
  return found < kHeldBack ? share(kManyQuotas * window_s) : 1;
}

std::vector<std::int64_t> processors_of_rank() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<std::int64_t> numbers;
  if (::sched_getaffinity(0, sizeof set, &set) == 0) {
    for (int number = 0; number < CPU_SETSIZE; ++number) {
      if (CPU_ISSET(number, &set)) {
        numbers.push_back(number);
      }
    }
  }
  return numbers;
}

double free_bytes_of_rank(const comm::World& world) {
  return static_cast<double>(host_memory().free()) / world.local_size();
}

/// A step of an optimizer over parameters as layers have them: what it reads of one that it has
/// just written is in a cache, so it takes less than its bytes would from memory.
class Update {
 public:
  static constexpr std::int64_t kElements = 1 << 16;
  static constexpr int kTensors = 16;

  /// Returns the bytes of one step, as prices count them.
  static double bytes() {
    return cost::runtime_constants({}, cost::Precision::kFull).optimizer_traffic_bytes * kTensors *
           kElements;
  }

  void once() {
    torch::nn::utils::clip_grad_norm_(parameters_, 1);
    optimizer_.step();
  }

 private:
  static std::vector<at::Tensor> made() {
    std::vector<at::Tensor> parameters;
    for (int i = 0; i < kTensors; ++i) {
      at::Tensor parameter = at::ones({kElements}).requires_grad_(true);
      parameter.mutable_grad() = at::ones({kElements});
      parameters.push_back(std::move(parameter));
    }
    return parameters;
  }

  std::vector<at::Tensor> parameters_ = made();
  torch::optim::AdamW optimizer_{parameters_};
};

} // namespace

RankMeasurement
measure_speed(comm::World& world, comm::ProcessGroup& everyone, const Effort& effort) {
  const at::NoGradGuard no_grad;
  RankMeasurement result;
  result.host = world.hosts()[static_cast<std::size_t>(world.rank())];
  result.processor = processor_name();
  result.processors = processors_of_rank();
  result.free_bytes = free_bytes_of_rank(world);
  const auto layer = training_layers();
  constexpr std::int64_t kElements = std::int64_t{4} << 20;
  const at::Tensor x = at::ones({kElements});
  at::Tensor sum = at::empty({kElements});
  const auto move = [&] { at::add_out(sum, x, x); };
  constexpr double kBytes = 3.0 * 4 * kElements; // two read, one written
  Update update;
  // Quotas usually have a period of a tenth of a second.
  const double window_s = std::max(0.12, 4 * effort.seconds_a_point);
  const bool first = world.local_rank() == 0;
  everyone.barrier();
  if (first) {
    measure_operators(effort, result);
    result.alone_layers_per_s = lasting_runs_per_s(layer, window_s, effort, result);
    // A quota of processor time lets short runs through at full speed and stops long ones.
    const double longer = 1 / lasting_share(window_s, effort, result);
    scale(result.speed, LayerPace::of_all({longer, longer}));
  }
  for (int round = 0; round < effort.rounds; ++round) {
    everyone.barrier();
    if (first) {
      result.alone_by_round.push_back(runs_per_s(layer, window_s));
    }
    everyone.barrier();
    result.busy_layers_per_s.push_back(runs_per_s(layer, window_s));
    everyone.barrier();
    result.busy_bytes_per_s =
        std::max(result.busy_bytes_per_s, kBytes * runs_per_s(move, window_s / 2));
    everyone.barrier();
    result.update_bytes_per_s = std::max(
        result.update_bytes_per_s,
        Update::bytes() * runs_per_s([&update] { update.once(); }, window_s / 2));
  }
  everyone.barrier();
  return result;
}

} // namespace tessera::autotune
