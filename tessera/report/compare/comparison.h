#pragma once

#include <optional>
#include <string>
#include <vector>

#include "tessera/report/run_log.h"

namespace tessera::report {

struct ComparedRun {
  std::string name; // as the user calls it: a path
  RunLog log;
};

/// Runs beside each other, in the order of the user. Pages and tables call them A, B, C ...
struct Comparison {
  std::vector<ComparedRun> runs;
  /// The time at which the comparison is made, in seconds since 1970; nullopt when unknown.
  std::optional<double> now;
};

/// Each run of a comparison has a colour of its own.
constexpr std::size_t kMostComparedRuns = 8;

/// Checks that there are 2 to kMostComparedRuns runs and none twice: two logs whose newest starts
/// have one run id are copies of one run.
/// Throws: Error that names the runs.
void check_comparable(const Comparison& comparison);

/// A property with its value for each run.
struct ComparedRow {
  std::string name;
  std::vector<std::string> values; // "-" where a log has none
};

/// What the runs were started with, as far as it differs.
struct Differences {
  std::vector<ComparedRow> facts; // fields of the run line
  /// Keys of the configuration, as "optimizer.learning_rate", with values as JSON; "-" where a
  /// configuration does not name the key, "unknown" where the log has no configuration.
  std::vector<ComparedRow> configuration;
};

/// Compares the newest starts. Throws: Error for a configuration that is not JSON.
Differences differences(const Comparison& comparison);

/// Returns the figures at the ends of the runs, those of `summarize`, and the losses at the last
/// step that all of them reached. A figure that no log has is left out.
std::vector<ComparedRow> final_figures(const Comparison& comparison);

/// Returns sentences about what limits the comparison: damaged logs, other data, logs that begin
/// late, losses that were not finite.
std::vector<std::string> remarks(const Comparison& comparison);

/// Returns "A" for run 0.
std::string letter(std::size_t run);

/// Returns one self-contained page. It runs no script and fetches nothing, and all text is escaped.
/// Throws: as check_comparable and differences.
std::string to_html(const Comparison& comparison);

/// Returns the same content, without the charts, as tables for the terminal.
/// Throws: as check_comparable and differences.
std::string to_text(const Comparison& comparison);

} // namespace tessera::report
