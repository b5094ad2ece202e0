#include "tessera/report/export/csv.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <optional>

#include "tessera/base/error.h"
#include "tessera/report/positions.h"

namespace tessera::report {

namespace {

std::string field(double value) {
  if (!std::isfinite(value)) {
    return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
  }
  std::array<char, 64> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return {text.data(), end};
}

std::string field(const std::optional<double>& value) {
  return value ? field(*value) : "";
}

std::string field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) {
    return text;
  }
  std::string out = "\"";
  for (const char c : text) {
    out += c == '"' ? "\"\"" : std::string(1, c);
  }
  return out + "\"";
}

std::string largest(const std::vector<std::int64_t>& of_ranks) {
  return of_ranks.empty() ? "" : str(*std::max_element(of_ranks.begin(), of_ranks.end()));
}

/// A record under the names of kNames.
using Line = std::vector<std::string>;

constexpr std::array kNames = {
    "record",
    "step",
    "start",
    "tokens",
    "seconds",
    "loss",
    "tokens_per_second",
    "step_seconds",
    "learning_rate",
    "grad_norm",
    "bubble_share",
    "loss_scale",
    "memory_bytes",
    "offload_bytes",
    "skipped"};

void put(const Line& line, std::string& out) {
  TESSERA_CHECK(line.size() == kNames.size());
  for (std::size_t i = 0; i < line.size(); ++i) {
    out += (i == 0 ? "" : ",") + line[i];
  }
  out += "\r\n";
}

Line line_of(const StepRecord& step, const Position& position) {
  return {
      "step",
      str(step.step),
      str(position.start + 1),
      position.tokens > 0 ? str(position.tokens) : "",
      field(position.seconds),
      field(step.loss),
      field(step.tokens_per_second),
      field(step.step_seconds),
      field(step.learning_rate),
      field(step.grad_norm),
      field(step.bubble_share),
      field(step.loss_scale),
      largest(step.memory_bytes),
      largest(step.offload_bytes),
      field(step.skipped)};
}

Line line_of(const ValidationRecord& validation) {
  Line line(kNames.size());
  line[0] = "validation";
  line[1] = str(validation.step);
  line[5] = field(validation.loss);
  return line;
}

} // namespace

std::string to_csv(const RunLog& log) {
  std::string out;
  put({kNames.begin(), kNames.end()}, out);
  const auto all = positions(log);
  auto validation = log.validations.begin();
  // A validation stands behind the step that it measures; one before all steps comes first.
  const auto put_validations = [&](std::int64_t before) {
    for (; validation != log.validations.end() && validation->step < before; ++validation) {
      put(line_of(*validation), out);
    }
  };
  for (std::size_t i = 0; i < log.steps.size(); ++i) {
    put_validations(log.steps[i].step);
    put(line_of(log.steps[i], all[i]), out);
  }
  put_validations(std::numeric_limits<std::int64_t>::max());
  return out;
}

} // namespace tessera::report
