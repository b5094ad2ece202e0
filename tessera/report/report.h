#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/report/run_log.h"
#include "tessera/timeline/timeline.h"

namespace tessera::report {

/// All that a report shows. Any part may be empty: its section then says so.
struct ReportInput {
  RunLog log;
  timeline::Timeline timeline;
  /// When the report is made, seconds since 1970; none: not known.
  std::optional<double> now;
  /// What all ranks together can compute, given by whoever asks for the report; none: the log's.
  std::optional<double> peak_flops_per_second;
};

/// One figure of many steps: the median, which a slow first step or a checkpoint does not move,
/// and the 10th and 90th percentile.
struct Spread {
  double low = 0;
  double median = 0;
  double high = 0;
  std::int64_t steps = 0; // how many steps had the figure
  std::int64_t first_step = 0;
  std::int64_t last_step = 0;
};

/// How a run stands: "finished", "stopped" and "failed" were written by the run; "open" means that
/// the log has no end: the run was killed, or it still runs.
struct State {
  std::string name = "open";
  std::int64_t step = 0; // the last one that was done
  std::string reason; // of a run that was stopped or failed
  std::string last_record; // ISO 8601; "" when the log has no times
  std::optional<double> silent_seconds; // from the last record until now
};

/// The figures at the head of a report.
struct Summary {
  State state;
  std::optional<std::int64_t> last_step;
  std::optional<double> first_loss;
  std::optional<double> last_loss; // mean of the last 10 steps (or all)
  std::int64_t last_loss_from = 0; // the first of those steps
  std::optional<double> best_validation_loss;
  std::int64_t best_validation_step = 0;
  std::optional<double> last_validation_loss;
  std::optional<Spread> tokens_per_second;
  std::optional<Spread> step_seconds;
  /// Over the steps of the log; where it has none, over those of the timeline.
  std::optional<Spread> bubble_share;
  bool bubble_of_timeline = false;
  /// From each start to its last record, summed over the starts; none when no record has a time.
  std::optional<double> wall_seconds;
  /// In the steps of the log, steps that were run again counted once.
  std::int64_t tokens = 0;
  /// Model FLOPs utilisation of the newest start: flops_per_token x median tokens per second
  /// over the peak. Source: Chowdhery et al. 2022, appendix B.
  std::optional<double> mfu;
  double peak_flops_per_second = 0; // what mfu was divided by; 0: unknown
  bool peak_given = false; // by whoever asked for the report
  std::vector<std::int64_t> peak_memory_bytes; // of each rank
};

Summary summarize(const ReportInput& input);

/// exp(loss): among how many equally likely tokens the model hesitates.
/// Units: `loss` in nats per token.
double perplexity(double loss);

/// Checks that `timeline` was written by one of the starts of `log`. A log without run ids (of
/// version 1) takes a timeline without one when their worlds have one size.
/// Throws: Error that names both ids, or what else differs.
void check_same_run(const RunLog& log, const timeline::Timeline& timeline);

/// One self-contained page: no script, nothing fetched, all text escaped; the
/// partition tree is an image, so that nothing inside it can run.
std::string to_html(const ReportInput& input);

/// The same as tables for the terminal.
std::string to_text(const ReportInput& input);

/// The figures of `summary` in words that html and text share.
namespace words {
/// "finished at step 500", "no end recorded: killed, or still running; last record ...".
std::string state(const Summary& summary);
/// "median of steps 2 to 500; 10 % to 90 % of them: 18.0 % to 25.1 %".
std::string spread(const Spread& spread, std::string (*format)(double));
/// "12.3 % of 45.6 GFLOP/s (measured ...)", or why it is not known.
std::string mfu(const ReportInput& input, const Summary& summary);
/// "45.6 GFLOP/s".
std::string flops(double flops_per_second);
} // namespace words

} // namespace tessera::report
