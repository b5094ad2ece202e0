#pragma once

#include <cstdint>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace tessera::report {

// Everywhere below, step n is the n-th update by the optimizer since the training began, counted
// from 1 and across restarts. Names of checkpoints and timelines use the same n.

/// The facts of a run. Each process writes them once at its start, also one that resumes the run.
struct RunFacts {
  std::string run_id; // identifies this start and its timeline; "" in old logs
  std::string model; // preset or name
  std::string started; // ISO 8601, UTC
  std::vector<std::string> command; // program and arguments, as rank 0 was started
  std::string program; // versions of the program and of its libraries
  std::string data; // the training data
  std::string precision = "f32";
  std::string schedule; // "interleaved", "simple", "custom"
  int world_size = 1;
  int pipeline_parallel_degree = 1;
  int tensor_parallel_degree = 1;
  int data_parallel_degree = 1;
  int microbatches = 1;
  std::int64_t parameters = 0;
  std::int64_t tokens_per_step = 0; // over all replicas
  std::int64_t first_step = 1; // above 1 when resumed; replaces earlier records from here on
  std::int64_t steps = 0; // of the whole training, as configured; 0: unknown
  /// The floating-point operations that one token of training needs by formula; 0: unknown.
  double flops_per_token = 0;
  /// The operations per second that all ranks together reach in a matrix product; 0: unknown.
  double peak_flops_per_second = 0;
  std::vector<std::string> hosts; // of each rank
  std::string config_json; // an object, "" when unknown
  std::string plan_json; // an object, "" when unknown
};

/// One training step. NaN represents a number that was not finite.
struct StepRecord {
  std::int64_t step = 0;
  double loss = std::numeric_limits<double>::quiet_NaN(); // nats per token
  double tokens_per_second = 0;
  double step_seconds = 0;
  double learning_rate = 0;
  std::optional<double> grad_norm; // nullopt when not computed
  /// The timeline::bubble_share of this step; nullopt without a pipeline.
  std::optional<double> bubble_share;
  std::optional<double> elapsed_seconds; // since the start in its run line
  std::vector<std::int64_t> memory_bytes; // of each rank; may be empty
  /// The most bytes that tensors of each rank held in this step; empty when not counted.
  std::vector<std::int64_t> peak_bytes;
  /// Size of each rank's file of offloaded activations; empty without offload_activations.
  std::vector<std::int64_t> offload_bytes;
  std::optional<double> loss_scale; // of this step, in fp16
  std::string skipped; // why the step's update was left out, "" when it was applied
};

struct ValidationRecord {
  std::int64_t step = 0;
  double loss = std::numeric_limits<double>::quiet_NaN(); // nats per token
};

/// The traffic that left all ranks through the groups of one name since the run began.
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

/// How a run ended. A process that is killed writes no such record.
struct EndRecord {
  std::string state; // "finished", "stopped" (can be resumed), "failed"
  std::int64_t step = 0; // the last step that was done; 0: none
  double elapsed_seconds = 0; // since the start in its run line
  std::string reason; // "" for a finished run
};

/// One start of a run: what the process was and how far it came.
struct Start {
  RunFacts facts;
  std::optional<EndRecord> end;
  std::int64_t last_step = 0; // the last step that it logged; 0: none
  double elapsed_seconds = 0; // at its last record that has a time
};

/// The log of a whole run. Records are in the order of their steps.
struct RunLog {
  RunFacts run; // of the newest start
  std::vector<Start> starts; // in the order of the file; the last one is the newest
  std::vector<StepRecord> steps;
  std::vector<ValidationRecord> validations;
  std::vector<TrafficRecord> traffic;
  std::vector<SampleRecord> samples;
  std::string partition_svg; // the last one written, "" when none
  bool torn = false; // the last line was cut off and left out
  std::int64_t bad_lines = 0; // lines that were no records and were left out
  std::string first_bad_line; // its place and what is wrong, "" when there is none
};

/// Appends lines to a log and flushes each, so that a run that dies leaves everything it had
/// reported. docs/run_log.md describes the form.
/// Threads: one thread at a time.
class RunLogWriter {
 public:
  enum class Mode { kNew, kContinue };

  /// Opens the log. kNew replaces the file; kContinue cuts off a torn line and then appends.
  /// Throws: Error naming the file when it cannot be opened.
  RunLogWriter(std::string path, Mode mode);
  /// Each write appends one line. One that cannot be written (disk full) is left out whole, since a
  /// training is worth more than its log; the first is a warning.
  /// Throws: Error naming the file when the run's own line cannot be written.
  void write(const RunFacts& run);
  void write(const StepRecord& step);
  void write(const ValidationRecord& validation);
  void write(const TrafficRecord& traffic);
  void write(const SampleRecord& sample);
  void write(const EndRecord& end);
  void write_partition(const std::string& svg);

 private:
  bool append(const std::string& line);
  void write_line(const std::string& line);

  std::string path_;
  std::ofstream file_;
  std::uintmax_t whole_ = 0; // bytes, up to the end of the last whole line
  bool warned_ = false;
};

/// Reads a log. A run line after the first (a resumed run) drops the records from its first_step
/// on, because they were run again. A torn last line is left out and reported in `torn`; any other
/// line that is no record is left out and counted, so that one bad byte does not cost the whole
/// log. Logs of version 1, which counted steps from 0, are read as well and counted from 1.
/// Throws: Error naming the file when it cannot be read, holds no run line, or was written by a
/// newer version.
RunLog read_run_log(const std::string& path);

/// Parses a log from text; `name` represents the file in messages.
RunLog parse_run_log(const std::string& text, const std::string& name);

/// Returns the seconds since 1970 of an ISO 8601 time in UTC ("2026-01-02T03:04:05Z"), nullopt for
/// any other text.
std::optional<double> seconds_of_utc(const std::string& time);
/// Returns the inverse, to the second; "" for a value that is no time of this calendar.
std::string utc_of_seconds(double seconds);

} // namespace tessera::report
