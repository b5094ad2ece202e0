#include "tessera/simulator/interval.h"

#include <algorithm>
#include <cmath>

#include "tessera/base/error.h"

namespace tessera::simulator {

namespace {

// Returns the value below which a share of ascending values lies, between two by interpolation.
double quantile(const std::vector<double>& ascending, double share) {
  const double place = share * static_cast<double>(ascending.size() - 1);
  const auto below = static_cast<std::size_t>(place);
  const std::size_t above = std::min(below + 1, ascending.size() - 1);
  const double part = place - static_cast<double>(below);
  return ascending[below] * (1 - part) + ascending[above] * part;
}

void check(double value, bool may_be_zero, const char* what) {
  if (!std::isfinite(value) || value < 0 || (value == 0 && !may_be_zero)) {
    throw ConfigError(
        str("failures: ",
            what,
            ": found ",
            value,
            may_be_zero ? "; write 0 or more" : "; write more than 0"));
  }
}

} // namespace

TimeInterval simulate_interval(
    const cost::DescribedModel& model,
    const cost::Cluster& cluster,
    const cost::Strategy& strategy,
    SimulationOptions options,
    int draws,
    double coverage) {
  if (draws < 1) {
    throw ConfigError(str("draws: found ", draws, "; write 1 or more"));
  }
  if (!(coverage >= 0 && coverage <= 1)) {
    throw ConfigError(str("coverage: found ", coverage, "; write 0 to 1"));
  }
  options.keep_events = false;
  std::vector<double> seconds;
  for (int i = 0; i < (options.jitter > 0 ? draws : 1); ++i) {
    seconds.push_back(simulate(model, cluster, strategy, options).iteration_seconds);
    ++options.seed;
  }
  std::sort(seconds.begin(), seconds.end());
  return {
      quantile(seconds, (1 - coverage) / 2),
      quantile(seconds, 0.5),
      quantile(seconds, (1 + coverage) / 2)};
}

double seconds_with_failures(double step_seconds, int devices, const Failures& failures) {
  check(failures.device_mean_time, false, "device_mean_time");
  check(failures.checkpoint_seconds, true, "checkpoint_seconds");
  check(failures.restart_seconds, true, "restart_seconds");
  check(failures.steps_between_checkpoints, false, "steps_between_checkpoints");
  const double rate = devices / failures.device_mean_time;
  const double segment =
      failures.steps_between_checkpoints * step_seconds + failures.checkpoint_seconds;
  // The job starts again, which may fail too, until a segment ends without a failure.
  const double whole =
      std::exp(rate * failures.restart_seconds) / rate * std::expm1(rate * segment);
  return whole / failures.steps_between_checkpoints;
}

double best_checkpoint_interval(double step_seconds, int devices, const Failures& failures) {
  Failures tried = failures;
  const auto seconds = [&](double steps) {
    tried.steps_between_checkpoints = steps;
    return seconds_with_failures(step_seconds, devices, tried);
  };
  // The time falls, then rises.
  double low = 1;
  double high = std::max(2.0, failures.device_mean_time / devices / step_seconds);
  while (high - low > 0.5) {
    const double third = (high - low) / 3;
    if (seconds(low + third) < seconds(high - third)) {
      high -= third;
    } else {
      low += third;
    }
  }
  const double steps = std::round((low + high) / 2);
  return std::max(1.0, seconds(steps) <= seconds(1) ? steps : 1);
}

} // namespace tessera::simulator
