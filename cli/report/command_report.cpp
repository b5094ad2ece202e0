#include <chrono>
#include <cstdio>
#include <memory>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/report/compare/comparison.h"
#include "tessera/report/export/csv.h"
#include "tessera/report/report.h"
#include "tessera/timeline/timeline.h"

#include "cli/command.h"
#include "cli/report/page_server.h"
#include "cli/report/report_files.h"
#include "cli/same_file.h"
#include "cli/text_file.h"

namespace tessera::cli {

namespace report_command {
namespace {

struct Options {
  std::vector<std::string> runs; // as the user names them
  std::vector<std::string> logs; // of each of them
  std::string timeline;
  std::string simulated;
  std::string output = "report.html";
  std::string chrome_trace;
  std::string csv;
  std::string tensorboard; // folder
  double peak_gflops = 0; // of all ranks together; 0: as measured
  bool quiet = false;
  bool watch = false;
  int port = 0; // 0: any that is free
};

/// Options that say something about one run.
void check_one_run(const Options& options) {
  const std::pair<const char*, bool> given[] = {
      {"--timeline", !options.timeline.empty()},
      {"--simulated", !options.simulated.empty()},
      {"--chrome-trace", !options.chrome_trace.empty()},
      {"--export-csv", !options.csv.empty()},
      {"--export-tensorboard", !options.tensorboard.empty()},
      {"--peak-gflops", options.peak_gflops > 0}};
  for (const auto& [name, is_given] : given) {
    if (options.runs.size() > 1 && is_given) {
      throw ConfigError(
          str(name, " is of one run, and ", options.runs.size(), " are given; name one"));
    }
  }
  if (options.runs.size() > report::kMostComparedRuns) {
    throw ConfigError(
        str("at most ",
            report::kMostComparedRuns,
            " runs are compared; ",
            options.runs.size(),
            " are given"));
  }
}

void check_files(const Options& options) {
  if (!options.chrome_trace.empty() && options.timeline.empty()) {
    throw ConfigError("--chrome-trace needs the events: give --timeline FILE as well");
  }
  if (!options.simulated.empty() && options.timeline.empty()) {
    throw ConfigError(
        "--simulated is drawn beside what was recorded: give --timeline FILE as well");
  }
  using Named = std::pair<const char*, std::string>;
  std::vector<Named> read = {{"--timeline", options.timeline}, {"--simulated", options.simulated}};
  for (const std::string& log : options.logs) {
    read.emplace_back("the log", log);
  }
  const Named written[] = {
      {"--output", options.output},
      {"--chrome-trace", options.chrome_trace},
      {"--export-csv", options.csv}};
  for (const auto& [writer, out] : written) {
    for (const auto& [reader, in] : read) {
      if (!out.empty() && !in.empty() && same_file(out, in)) {
        throw ConfigError(
            str(writer,
                " '",
                out,
                "' is ",
                reader,
                " itself, which would be lost; write to "
                "another file"));
      }
    }
    for (const auto& [other, file] : written) {
      if (&other < &writer && !out.empty() && !file.empty() && same_file(out, file)) {
        throw ConfigError(str(other, " and ", writer, " are both '", out, "'; name two files"));
      }
    }
  }
}

double seconds_now() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

report::ReportInput read_run(const Options& options) {
  report::ReportInput input;
  input.log = report::read_run_log(options.logs.front());
  input.now = seconds_now();
  if (options.peak_gflops > 0) {
    input.peak_flops_per_second = options.peak_gflops * 1e9;
  }
  if (!options.timeline.empty()) {
    try {
      input.timeline = timeline::timeline_from_json(read_file<Error>(options.timeline));
      report::check_same_run(input.log, input.timeline);
    } catch (const Error& error) {
      throw Error(str(options.timeline, ": ", error.what()));
    }
  }
  if (!options.simulated.empty()) {
    try {
      input.simulated = timeline::timeline_from_json(read_file<Error>(options.simulated));
      report::check_simulation(input.timeline, input.simulated);
    } catch (const Error& error) {
      throw Error(str(options.simulated, ": ", error.what()));
    }
  }
  return input;
}

report::Comparison read_runs(const Options& options) {
  report::Comparison comparison;
  for (std::size_t i = 0; i < options.runs.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (same_file(options.logs[i], options.logs[j])) {
        throw ConfigError(str(
            "'", options.runs[j], "' and '", options.runs[i], "' are one log; name each run once"));
      }
    }
    comparison.runs.push_back({options.runs[i], report::read_run_log(options.logs[i])});
  }
  comparison.now = seconds_now();
  return comparison;
}

void watch(const Options& options) {
  const auto page = [&options] {
    return options.runs.size() == 1 ? report::to_html(read_run(options))
                                    : report::to_html(read_runs(options));
  };
  page(); // what cannot be shown at all is said here, not to a browser
  PageServer server(static_cast<std::uint16_t>(options.port));
  std::printf("report: %s; Ctrl-C ends it\n", server.address().c_str());
  std::fflush(stdout);
  server.serve(page);
}

void export_run(const Options& options, const report::ReportInput& input) {
  if (!options.chrome_trace.empty()) {
    write_text_file(options.chrome_trace, timeline::to_chrome_trace(input.timeline));
  }
  if (!options.csv.empty()) {
    write_text_file(options.csv, report::to_csv(input.log));
  }
  if (!options.tensorboard.empty()) {
    std::printf("events: %s\n", write_event_file(options.tensorboard, input.log).c_str());
  }
}

void run(Options options) {
  check_one_run(options);
  for (const std::string& path : options.runs) {
    options.logs.push_back(log_of(path));
  }
  check_files(options);
  if (options.watch) {
    watch(options);
    return;
  }
  std::string tables;
  if (options.runs.size() == 1) {
    const report::ReportInput input = read_run(options);
    write_text_file(options.output, report::to_html(input));
    export_run(options, input);
    tables = report::to_text(input);
  } else {
    const report::Comparison comparison = read_runs(options);
    write_text_file(options.output, report::to_html(comparison));
    tables = report::to_text(comparison);
  }
  if (!options.quiet) {
    std::printf("%s\n", tables.c_str());
  }
  std::printf("report: %s\n", options.output.c_str());
}

void set_up(CLI::App& app) {
  auto options = std::make_shared<Options>();
  app.footer("tessera train --log FILE --timeline FILE writes both files of a run.");
  app.add_option(
         "runs",
         options->runs,
         "log of tessera train --log, or a folder that holds one; several runs are compared")
      ->required();
  app.add_option("--timeline", options->timeline, "timeline file of the same run");
  app.add_option(
      "--simulated",
      options->simulated,
      "timeline of tessera simulate, or of a trial that was kept; drawn below what was recorded");
  auto* output =
      app.add_option("-o,--output", options->output, "HTML file to write")->capture_default_str();
  auto* trace = app.add_option(
      "--chrome-trace",
      options->chrome_trace,
      "also write the timeline for chrome://tracing and Perfetto");
  auto* csv = app.add_option(
      "--export-csv", options->csv, "also write steps and validations as comma-separated values");
  auto* events = app.add_option(
      "--export-tensorboard",
      options->tensorboard,
      "also write the run's scalars as an event file into this folder, for TensorBoard");
  app.add_option(
         "--peak-gflops",
         options->peak_gflops,
         "what all ranks together can compute, for MFU; without it, what train measured")
      ->check(CLI::PositiveNumber);
  auto* quiet = app.add_flag("-q,--quiet", options->quiet, "no tables on the terminal");
  auto* watching = app.add_flag(
      "--watch",
      options->watch,
      "write nothing; show the page to browsers of this machine, as the run goes on");
  for (CLI::Option* other : {output, trace, csv, events, quiet}) {
    watching->excludes(other);
  }
  app.add_option("--port", options->port, "with --watch: where; 0 takes a free one")
      ->check(CLI::Range(0, 65535))
      ->needs(watching)
      ->capture_default_str();
  app.callback([options] { run(*options); });
}

const RegisterCommand kReport({
    "report",
    "show a run, or compare runs: losses, pipeline, memory, traffic",
    set_up,
});

} // namespace
} // namespace report_command

} // namespace tessera::cli
