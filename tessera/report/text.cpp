#include <algorithm>
#include <map>

#include "tessera/base/error.h"
#include "tessera/report/format.h"
#include "tessera/report/report.h"
#include "tessera/report/text_table.h"

namespace tessera::report {

namespace {

std::string or_dash(const std::optional<double>& value, std::string (*format)(double)) {
  return value ? format(*value) : "-";
}

std::string plain(double value) {
  return format_number(value);
}

std::string figures(const RunFacts& run, const Summary& summary) {
  std::string out = run.model.empty() ? "Training run" : run.model;
  out +=
      str(", ",
          format_count(static_cast<double>(run.parameters)),
          " parameters, ",
          run.world_size,
          " ranks (",
          run.pipeline_parallel_degree,
          " pp x ",
          run.tensor_parallel_degree,
          " tp x ",
          run.data_parallel_degree,
          " rdp), ",
          run.microbatches,
          " microbatches\n");
  out +=
      str("  loss        ",
          or_dash(summary.first_loss, plain),
          " -> ",
          or_dash(summary.last_loss, plain),
          ", best validation ",
          or_dash(summary.best_validation_loss, plain),
          "\n  speed       ",
          or_dash(summary.tokens_per_second, format_count),
          " tokens/s, ",
          or_dash(summary.step_seconds, format_seconds),
          " a step\n  bubble      ",
          or_dash(summary.bubble_share, format_share),
          "\n");
  return out;
}

std::string step_table(const RunLog& log) {
  constexpr std::size_t kMostRows = 12;
  TextTable table;
  table.headers = {"step", "loss", "tokens/s", "step time", "bubble", "lr", "grad norm"};
  const auto& steps = log.steps;
  const std::size_t rows = std::min(kMostRows, steps.size());
  for (std::size_t i = 0; i < rows; ++i) {
    // Evenly spread, the first and the last among them.
    const StepRecord& step = steps[rows == 1 ? 0 : i * (steps.size() - 1) / (rows - 1)];
    table.rows.push_back(
        {str(step.step),
         format_number(step.loss),
         format_count(step.tokens_per_second),
         format_seconds(step.step_seconds),
         or_dash(step.bubble_share, format_share),
         format_number(step.learning_rate),
         or_dash(step.grad_norm, plain)});
  }
  return to_text(table);
}

std::string memory_table(const RunLog& log, const Summary& summary) {
  TextTable table;
  table.headers = {"rank", "host", "peak memory"};
  for (std::size_t rank = 0; rank < summary.peak_memory_bytes.size(); ++rank) {
    table.rows.push_back(
        {str(rank),
         rank < log.run.hosts.size() ? log.run.hosts[rank] : "-",
         format_bytes(static_cast<double>(summary.peak_memory_bytes[rank]))});
  }
  return to_text(table);
}

std::string traffic_table(const RunLog& log) {
  std::map<std::string, TrafficRecord> latest;
  for (const TrafficRecord& record : log.traffic) {
    latest[record.group] = record;
  }
  TextTable table;
  table.headers = {"group", "bytes", "calls"};
  for (const auto& entry : latest) {
    table.rows.push_back(
        {entry.first,
         format_bytes(static_cast<double>(entry.second.bytes)),
         format_count(static_cast<double>(entry.second.calls))});
  }
  return to_text(table);
}

} // namespace

std::string to_text(const ReportInput& input) {
  const Summary summary = summarize(input);
  std::string out = figures(input.log.run, summary);
  if (input.log.torn) {
    out += "  the last line of the log was cut off and is left out\n";
  }
  if (input.log.bad_lines > 0) {
    out +=
        str("  lines that were no records and are left out: ",
            input.log.bad_lines,
            "; the first: ",
            input.log.first_bad_line,
            "\n");
  }
  if (!input.log.steps.empty()) {
    out += "\n" + step_table(input.log);
  }
  if (!summary.peak_memory_bytes.empty()) {
    out += "\n" + memory_table(input.log, summary);
  }
  if (!input.log.traffic.empty()) {
    out += "\n" + traffic_table(input.log);
  }
  return out;
}

} // namespace tessera::report
