#pragma once

#include <cstdint>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace tessera::report {

/// What a run was. Written once at its start, again when it is resumed.
struct RunFacts {
  std::string model; // preset or name
  std::string started; // ISO 8601, UTC
  std::string data; // what it was trained on
  std::string precision = "f32";
  std::string schedule; // "interleaved", "simple", "custom"
  int world_size = 1;
  int pipeline_parallel_degree = 1;
  int tensor_parallel_degree = 1;
  int data_parallel_degree = 1;
  int microbatches = 1;
  std::int64_t parameters = 0;
  std::int64_t tokens_per_step = 0;
  std::int64_t first_step = 0; // > 0: resumed; steps from here on count anew
  std::vector<std::string> hosts; // of each rank
  std::string config_json; // an object, "" when unknown
  std::string plan_json; // an object, "" when unknown
};

/// One training step. NaN stands for a number that was not finite.
struct StepRecord {
  std::int64_t step = 0;
  double loss = std::numeric_limits<double>::quiet_NaN();
  double tokens_per_second = 0;
  double step_seconds = 0;
  double learning_rate = 0;
  std::optional<double> grad_norm; // none when not computed
  std::optional<double> bubble_share; // none when not recorded
  std::vector<std::int64_t> memory_bytes; // of each rank; may be empty
  std::string skipped; // why the step's update was left out, "" when it was applied
};

struct ValidationRecord {
  std::int64_t step = 0;
  double loss = std::numeric_limits<double>::quiet_NaN();
};

/// What left all ranks through the groups of one name since the run began.
struct TrafficRecord {
  std::int64_t step = 0;
  std::string group; // "dp", "transport"
  std::int64_t calls = 0;
  std::int64_t bytes = 0;
};

struct SampleRecord {
  std::int64_t step = 0;
  std::string prompt;
  std::string text;
};

/// A whole run's log. Records are in the order of their steps.
struct RunLog {
  RunFacts run;
  std::vector<StepRecord> steps;
  std::vector<ValidationRecord> validations;
  std::vector<TrafficRecord> traffic;
  std::vector<SampleRecord> samples;
  std::string partition_svg; // the last one written, "" when none
  bool torn = false; // the last line was cut off and left out
  std::int64_t bad_lines = 0; // that were no records, and left out
  std::string first_bad_line; // its place and what is wrong, "" when there is none
};

/// Appends lines to a log, each flushed, so that a run that dies leaves all
/// that it had reported. docs/run_log.md describes the form.
/// Threads: one thread at a time.
class RunLogWriter {
 public:
  enum class Mode { kNew, kContinue };

  /// kNew replaces the file; kContinue appends, after cutting off a torn line.
  /// Throws: Error naming the file when it cannot be opened.
  RunLogWriter(std::string path, Mode mode);
  /// Throws: Error naming the file when a line cannot be written (disk full).
  void write(const RunFacts& run);
  void write(const StepRecord& step);
  void write(const ValidationRecord& validation);
  void write(const TrafficRecord& traffic);
  void write(const SampleRecord& sample);
  void write_partition(const std::string& svg);

 private:
  void write_line(const std::string& line);

  std::string path_;
  std::ofstream file_;
};

/// Reads a log. A run line after the first (a resumed run) drops the records
/// from its first_step on: they were run again. A torn last line is left out
/// and reported in `torn`; any other line that is no record is left out and
/// counted, so that one bad byte does not cost the whole log.
/// Throws: Error naming the file when it cannot be read or has no good line of
/// type "run"; then the first bad line is named with its field, what was found
/// and what is allowed.
RunLog read_run_log(const std::string& path);

/// The same from text; `name` stands for the file in messages.
RunLog parse_run_log(const std::string& text, const std::string& name);

} // namespace tessera::report
