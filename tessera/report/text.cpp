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

std::string spread_of(const std::optional<Spread>& spread, std::string (*format)(double)) {
  return spread ? str(format(spread->median), " (", words::spread(*spread, format), ")") : "-";
}

std::string figures(const ReportInput& input, const Summary& summary) {
  const RunFacts& run = input.log.run;
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
  if (!input.log.starts.empty()) {
    out += str("  state       ", words::state(summary), "\n");
  }
  for (std::size_t i = 1; i < input.log.starts.size(); ++i) {
    const RunFacts& start = input.log.starts[i].facts;
    out += str("  restart     ", start.started, ", resumed at step ", start.first_step, "\n");
  }
  out +=
      str("  loss        ",
          or_dash(summary.first_loss, plain),
          " -> ",
          or_dash(summary.last_loss, plain),
          summary.last_step
              ? str(" (mean of steps ", summary.last_loss_from, " to ", *summary.last_step, ")")
              : "",
          "\n  validation  ");
  out += summary.best_validation_loss ? str("best ",
                                            plain(*summary.best_validation_loss),
                                            " at step ",
                                            summary.best_validation_step,
                                            ", perplexity ",
                                            plain(perplexity(*summary.best_validation_loss)))
                                      : "-";
  out += str("\n  tokens/s    ", spread_of(summary.tokens_per_second, format_count));
  out += str("\n  step time   ", spread_of(summary.step_seconds, format_seconds));
  out += str("\n  bubble      ", spread_of(summary.bubble_share, format_share));
  out += str("\n  a device    ", words::device_flops(input, summary));
  out += str("\n  MFU         ", words::mfu(input, summary));
  out +=
      str("\n  in all      ",
          format_count(static_cast<double>(summary.tokens)),
          " tokens in ",
          or_dash(summary.wall_seconds, format_seconds),
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
    // The rows are spread evenly, with the first and the last step among them.
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
  const auto& tensors = summary.peak_tensor_bytes;
  table.headers = {"rank", "host", "peak memory"};
  if (!tensors.empty()) {
    table.headers.emplace_back("peak of tensors");
  }
  for (std::size_t rank = 0; rank < summary.peak_memory_bytes.size(); ++rank) {
    std::vector<std::string> row = {
        str(rank),
        rank < log.run.hosts.size() ? log.run.hosts[rank] : "-",
        format_bytes(static_cast<double>(summary.peak_memory_bytes[rank]))};
    if (!tensors.empty()) {
      row.push_back(rank < tensors.size() ? format_bytes(static_cast<double>(tensors[rank])) : "-");
    }
    table.rows.push_back(std::move(row));
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
  std::string out = figures(input, summary);
  for (const std::string& lost : words::damage(input.log)) {
    out += "  " + lost + "\n";
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
