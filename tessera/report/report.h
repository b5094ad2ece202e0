#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/report/run_log.h"
#include "tessera/timeline/timeline.h"

namespace tessera::report {

/// The input of a report. Any part may be empty; its section then says so.
struct ReportInput {
  RunLog log;
  timeline::Timeline timeline;
  /// A simulation of one step of the run, drawn below what was recorded; no events: none.
  timeline::Timeline simulated;
  /// The time at which the report is made, in seconds since 1970; nullopt when unknown.
  std::optional<double> now;
  /// The peak of all ranks together, given by the user of the report; nullopt takes the log's.
  std::optional<double> peak_flops_per_second;
};

/// The distribution of a figure over many steps: the median, which a slow first step or a
/// checkpoint does not move, and the 10th and 90th percentile.
struct Spread {
  double low = 0;
  double median = 0;
  double high = 0;
  std::int64_t steps = 0; // how many steps had the figure
  std::int64_t first_step = 0;
  std::int64_t last_step = 0;
};

/// The state of a run. The run itself writes "finished", "stopped" and "failed"; "open" means that
/// the log has no end, because the run was killed or still runs.
struct State {
  std::string name = "open";
  std::int64_t step = 0; // the last step that was done
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
  /// Computed over the steps of the log, or over those of the timeline where the log has no figure.
  std::optional<Spread> bubble_share;
  bool bubble_of_timeline = false;
  /// The time from each start to its last record, summed over the starts; nullopt when no record
  /// has a time.
  std::optional<double> wall_seconds;
  /// The tokens in the steps of the log; a step that was run again counts once.
  std::int64_t tokens = 0;
  /// The model FLOPs utilisation of the newest start: flops_per_token x median tokens per second /
  /// peak. Source: Chowdhery et al. 2022, appendix B.
  std::optional<double> mfu;
  double peak_flops_per_second = 0; // by which mfu was divided; 0: unknown
  bool peak_given = false; // by the user of the report
  /// What a device did of the operations that training needs by formula, over the newest start:
  /// flops_per_token x tokens per second / ranks. It needs no peak.
  std::optional<Spread> device_flops_per_second;
  std::vector<std::int64_t> peak_memory_bytes; // of each rank
  std::vector<std::int64_t> peak_tensor_bytes; // the part of it that tensors held; may be empty
};

/// Computes the figures. A figure whose input is missing is left empty.
Summary summarize(const ReportInput& input);

/// Returns exp(loss): the number of equally likely tokens that would give this loss.
/// Units: `loss` in nats per token.
double perplexity(double loss);

/// Checks that one of the starts of `log` wrote `timeline`. A log without run ids (of version 1)
/// accepts a timeline without one when their world sizes are equal.
/// Throws: Error that names both ids, or what else differs.
void check_same_run(const RunLog& log, const timeline::Timeline& timeline);

/// Checks that `simulated` is a simulation of one step on the ranks of `timeline`.
/// Throws: Error that says what differs.
void check_simulation(const timeline::Timeline& timeline, const timeline::Timeline& simulated);

/// Returns one self-contained page. It runs no script and fetches nothing, all text is escaped, and
/// the partition tree is an image, so that nothing inside it can run.
std::string to_html(const ReportInput& input);

/// Returns the same content as tables for the terminal.
std::string to_text(const ReportInput& input);

/// The figures of `summary` as phrases that html and text share.
namespace words {
/// Returns "finished at step 500", or "no end recorded: killed, or still running; last record ...".
std::string state(const Summary& summary);
/// Returns "median of steps 2 to 500; 10 % to 90 % of them: 18.0 % to 25.1 %".
std::string spread(const Spread& spread, std::string (*format)(double));
/// Returns "12.3 % of 45.6 GFLOP/s (measured ...)", or why it is unknown.
std::string mfu(const ReportInput& input, const Summary& summary);
/// Returns "1.20 GFLOP/s (median of ...)", or why it is unknown.
std::string device_flops(const ReportInput& input, const Summary& summary);
/// Returns "45.6 GFLOP/s".
std::string flops(double flops_per_second);
/// Returns a sentence for each kind of line that the log has lost; empty for a whole log.
std::vector<std::string> damage(const RunLog& log);
/// Returns "4 ranks: 2 pp x 1 tp x 2 rdp".
std::string layout(const RunFacts& run);
} // namespace words

} // namespace tessera::report
