#include <algorithm>
#include <cmath>
#include <numeric>

#include "tessera/report/report.h"

namespace tessera::report {

namespace {

std::optional<double> median(std::vector<double> values) {
  if (values.empty()) {
    return std::nullopt;
  }
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) {
    return *middle;
  }
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

std::optional<double> mean(const std::vector<double>& values) {
  if (values.empty()) {
    return std::nullopt;
  }
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

} // namespace

Summary summarize(const ReportInput& input) {
  constexpr std::size_t kLast = 10;
  Summary summary;
  const auto& steps = input.log.steps;
  std::vector<double> tokens_per_second;
  std::vector<double> step_seconds;
  std::vector<double> bubble_shares;
  std::vector<double> last_losses;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const StepRecord& step = steps[i];
    tokens_per_second.push_back(step.tokens_per_second);
    step_seconds.push_back(step.step_seconds);
    if (step.bubble_share) {
      bubble_shares.push_back(*step.bubble_share);
    }
    if (i + kLast >= steps.size()) {
      last_losses.push_back(step.loss);
    }
    auto& peak = summary.peak_memory_bytes;
    peak.resize(std::max(peak.size(), step.memory_bytes.size()));
    for (std::size_t rank = 0; rank < step.memory_bytes.size(); ++rank) {
      peak[rank] = std::max(peak[rank], step.memory_bytes[rank]);
    }
  }
  if (!steps.empty()) {
    summary.last_step = steps.back().step;
    summary.first_loss = steps.front().loss;
  }
  summary.last_loss = mean(last_losses);
  summary.tokens_per_second = median(tokens_per_second);
  summary.step_seconds = median(step_seconds);
  summary.bubble_share = mean(bubble_shares);
  if (!input.timeline.events.empty()) {
    summary.bubble_share = timeline::bubble_share(input.timeline);
  }
  for (const ValidationRecord& validation : input.log.validations) {
    if (std::isfinite(validation.loss) &&
        (!summary.best_validation_loss || validation.loss < *summary.best_validation_loss)) {
      summary.best_validation_loss = validation.loss;
    }
  }
  return summary;
}

} // namespace tessera::report
