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
};

/// The figures at the head of a report.
struct Summary {
  std::optional<std::int64_t> last_step;
  std::optional<double> first_loss;
  std::optional<double> last_loss; // mean of the last 10 steps (or all)
  std::optional<double> best_validation_loss;
  /// Medians, which a slow first step or a checkpoint do not move.
  std::optional<double> tokens_per_second;
  std::optional<double> step_seconds;
  /// Of the timeline when there is one, else the mean of the logged ones.
  std::optional<double> bubble_share;
  std::vector<std::int64_t> peak_memory_bytes; // of each rank
};

Summary summarize(const ReportInput& input);

/// One self-contained page: no script, nothing fetched, all text escaped; the
/// partition tree is an image, so that nothing inside it can run.
std::string to_html(const ReportInput& input);

/// The same as tables for the terminal.
std::string to_text(const ReportInput& input);

} // namespace tessera::report
