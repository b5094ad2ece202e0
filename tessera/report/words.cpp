#include "tessera/base/error.h"
#include "tessera/report/format.h"
#include "tessera/report/report.h"

namespace tessera::report::words {

std::string state(const Summary& summary) {
  const State& state = summary.state;
  const std::string at = state.step > 0 ? str("at step ", state.step) : "before the first step";
  if (state.name != "open") {
    const std::string when = state.last_record.empty() ? "" : ", " + state.last_record;
    const std::string why = state.reason.empty() ? "" : ": " + state.reason;
    return str(state.name, " ", at, when, why);
  }
  std::string out = "no end is recorded: the run was killed or still runs; last record " + at;
  if (!state.last_record.empty()) {
    out += ", " + state.last_record;
  }
  if (state.silent_seconds) {
    out += str(" (", format_seconds(*state.silent_seconds), " before this report)");
  }
  return out;
}

std::string spread(const Spread& spread, std::string (*format)(double)) {
  if (spread.steps == 1) {
    return str("step ", spread.first_step, " alone");
  }
  return str(
      "median of ",
      spread.steps,
      " steps, ",
      spread.first_step,
      " to ",
      spread.last_step,
      "; 10th to 90th percentile ",
      format(spread.low),
      " to ",
      format(spread.high));
}

std::string flops(double flops_per_second) {
  // "45.6 G" and "FLOP/s" make one unit; below a thousand there is a space to add.
  const std::string count = format_count(flops_per_second);
  const bool prefixed = count.find(' ') != std::string::npos;
  std::string text = count;
  if (prefixed && text.back() == 'B') {
    text.back() = 'G';
  }
  return text + (prefixed ? "FLOP/s" : " FLOP/s");
}

std::string mfu(const ReportInput& input, const Summary& summary) {
  const RunFacts& run = input.log.run;
  if (!(run.flops_per_token > 0)) {
    return "unknown: the log has no FLOPs per token";
  }
  if (!(summary.peak_flops_per_second > 0)) {
    return "unknown: no peak was measured, and none was given";
  }
  if (!summary.mfu) {
    return "unknown: the log has no steps of this start";
  }
  return str(
      format_share(*summary.mfu),
      " of ",
      flops(summary.peak_flops_per_second),
      summary.peak_given ? " (given)" : " (matrix products of all ranks, measured at the start)");
}

std::string device_flops(const ReportInput& input, const Summary& summary) {
  if (!(input.log.run.flops_per_token > 0)) {
    return "unknown: the log has no FLOPs per token";
  }
  if (!summary.device_flops_per_second) {
    return "unknown: the log has no steps of this start";
  }
  const Spread& speed = *summary.device_flops_per_second;
  return str(flops(speed.median), " (", spread(speed, flops), ")");
}

std::vector<std::string> damage(const RunLog& log) {
  std::vector<std::string> out;
  if (log.torn) {
    out.emplace_back("The last line of the log was cut off and is left out.");
  }
  if (log.bad_lines > 0) {
    out.push_back(
        str("Lines of the log that could not be read and are left out: ",
            log.bad_lines,
            "; the first: ",
            log.first_bad_line));
  }
  return out;
}

std::string layout(const RunFacts& run) {
  return str(
      run.world_size,
      run.world_size == 1 ? " rank: " : " ranks: ",
      run.pipeline_parallel_degree,
      " pp x ",
      run.tensor_parallel_degree,
      " tp x ",
      run.data_parallel_degree,
      " rdp");
}

} // namespace tessera::report::words
