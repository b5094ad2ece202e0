#include <algorithm>
#include <cmath>
#include <numeric>

#include "tessera/base/error.h"
#include "tessera/report/positions.h"
#include "tessera/report/report.h"

namespace tessera::report {

namespace {

/// Returns the quantile, interpolated between the two nearest values.
double quantile(const std::vector<double>& sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

using StepValue = std::pair<std::int64_t, double>; // step and figure

std::optional<Spread> spread_of(const std::vector<StepValue>& values) {
  Spread spread;
  std::vector<double> sorted;
  for (const auto& [step, value] : values) {
    if (!std::isfinite(value)) {
      continue;
    }
    if (sorted.empty()) {
      spread.first_step = step;
    }
    spread.last_step = step;
    sorted.push_back(value);
  }
  if (sorted.empty()) {
    return std::nullopt;
  }
  std::sort(sorted.begin(), sorted.end());
  spread.steps = static_cast<std::int64_t>(sorted.size());
  spread.low = quantile(sorted, 0.1);
  spread.median = quantile(sorted, 0.5);
  spread.high = quantile(sorted, 0.9);
  return spread;
}

State state_of(const ReportInput& input) {
  State state;
  if (input.log.starts.empty()) {
    return state;
  }
  const Start& last = input.log.starts.back();
  state.step = input.log.steps.empty() ? 0 : input.log.steps.back().step;
  if (last.end) {
    state.name = last.end->state;
    state.step = last.end->step;
    state.reason = last.end->reason;
  }
  const auto started = seconds_of_utc(last.facts.started);
  if (started && (last.elapsed_seconds > 0 || last.end)) {
    const double at = *started + last.elapsed_seconds;
    state.last_record = utc_of_seconds(at);
    if (input.now && *input.now >= at) {
      state.silent_seconds = *input.now - at;
    }
  }
  return state;
}

void add_losses(const RunLog& log, Summary& summary) {
  constexpr std::size_t kLast = 10;
  const auto& steps = log.steps;
  if (steps.empty()) {
    return;
  }
  summary.last_step = steps.back().step;
  summary.first_loss = steps.front().loss;
  const std::size_t count = std::min(kLast, steps.size());
  summary.last_loss_from = steps[steps.size() - count].step;
  double sum = 0;
  for (std::size_t i = steps.size() - count; i < steps.size(); ++i) {
    sum += steps[i].loss;
  }
  summary.last_loss = sum / static_cast<double>(count);
}

void add_validations(const RunLog& log, Summary& summary) {
  for (const ValidationRecord& validation : log.validations) {
    summary.last_validation_loss = validation.loss;
    if (std::isfinite(validation.loss) &&
        (!summary.best_validation_loss || validation.loss < *summary.best_validation_loss)) {
      summary.best_validation_loss = validation.loss;
      summary.best_validation_step = validation.step;
    }
  }
}

void add_speed(const ReportInput& input, Summary& summary) {
  std::vector<StepValue> tokens_per_second;
  std::vector<StepValue> step_seconds;
  std::vector<StepValue> bubble_shares;
  for (const StepRecord& step : input.log.steps) {
    tokens_per_second.emplace_back(step.step, step.tokens_per_second);
    step_seconds.emplace_back(step.step, step.step_seconds);
    if (step.bubble_share) {
      bubble_shares.emplace_back(step.step, *step.bubble_share);
    }
  }
  summary.tokens_per_second = spread_of(tokens_per_second);
  summary.step_seconds = spread_of(step_seconds);
  if (bubble_shares.empty()) {
    for (const int step : timeline::steps(input.timeline)) {
      bubble_shares.emplace_back(step, timeline::bubble_share(input.timeline, step));
    }
    summary.bubble_of_timeline = !bubble_shares.empty();
  }
  summary.bubble_share = spread_of(bubble_shares);
}

/// Adds wall time and tokens, summed over the starts.
void add_totals(const RunLog& log, Summary& summary) {
  double seconds = 0;
  bool timed = false;
  for (const Start& start : log.starts) {
    seconds += start.elapsed_seconds;
    timed = timed || start.elapsed_seconds > 0;
  }
  if (timed) {
    summary.wall_seconds = seconds;
  }
  if (const auto all = positions(log); !all.empty()) {
    summary.tokens = all.back().tokens;
  }
}

void add_mfu(const ReportInput& input, Summary& summary) {
  const RunFacts& run = input.log.run;
  summary.peak_given = input.peak_flops_per_second.has_value();
  summary.peak_flops_per_second = input.peak_flops_per_second.value_or(run.peak_flops_per_second);
  if (!(run.flops_per_token > 0)) {
    return;
  }
  std::vector<StepValue> newest; // of the newest start, since the peak is that of its ranks
  std::vector<StepValue> of_a_device;
  for (const StepRecord& step : input.log.steps) {
    if (step.step >= run.first_step) {
      newest.emplace_back(step.step, step.tokens_per_second);
      of_a_device.emplace_back(
          step.step, run.flops_per_token * step.tokens_per_second / run.world_size);
    }
  }
  summary.device_flops_per_second = spread_of(of_a_device);
  if (const auto speed = spread_of(newest); speed && summary.peak_flops_per_second > 0) {
    summary.mfu = run.flops_per_token * speed->median / summary.peak_flops_per_second;
  }
}

} // namespace

Summary summarize(const ReportInput& input) {
  Summary summary;
  summary.state = state_of(input);
  add_losses(input.log, summary);
  add_validations(input.log, summary);
  add_speed(input, summary);
  add_totals(input.log, summary);
  add_mfu(input, summary);
  const auto take_peaks = [](const std::vector<std::int64_t>& of_step,
                             std::vector<std::int64_t>& peak) {
    peak.resize(std::max(peak.size(), of_step.size()));
    for (std::size_t rank = 0; rank < of_step.size(); ++rank) {
      peak[rank] = std::max(peak[rank], of_step[rank]);
    }
  };
  for (const StepRecord& step : input.log.steps) {
    take_peaks(step.memory_bytes, summary.peak_memory_bytes);
    take_peaks(step.peak_bytes, summary.peak_tensor_bytes);
  }
  return summary;
}

double perplexity(double loss) {
  return std::exp(loss);
}

void check_same_run(const RunLog& log, const timeline::Timeline& timeline) {
  std::string known;
  for (const Start& start : log.starts) {
    if (start.facts.run_id == timeline.run_id && start.facts.world_size == timeline.world_size) {
      return;
    }
    known +=
        str(known.empty() ? "" : ", ",
            "'",
            start.facts.run_id,
            "' on ",
            start.facts.world_size,
            " ranks");
  }
  throw Error(
      str("the timeline is not of this run: ",
          timeline.run_id.empty() ? str("it is ", timeline.origin, " and has no run id")
                                  : str("its run id is '", timeline.run_id, "'"),
          ", on ",
          timeline.world_size,
          " ranks; the log holds ",
          known,
          ". Give the timeline that the same run wrote"));
}

} // namespace tessera::report
