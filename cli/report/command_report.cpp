#include <cerrno>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <memory>
#include <sstream>
#include <system_error>

#include "tessera/base/error.h"
#include "tessera/base/files.h"
#include "tessera/report/report.h"
#include "tessera/timeline/timeline.h"

#include "cli/command.h"
#include "cli/same_file.h"

namespace tessera::cli {

namespace report_command {
namespace {

struct Options {
  std::string log;
  std::string timeline;
  std::string output = "report.html";
  std::string chrome_trace;
  double peak_gflops = 0; // of all ranks together; 0: as measured
  bool quiet = false;
};

void check_files(const Options& options) {
  if (!options.chrome_trace.empty() && options.timeline.empty()) {
    throw ConfigError("--chrome-trace needs the events: give --timeline FILE as well");
  }
  const std::pair<const char*, const std::string&> read[] = {
      {"the log", options.log}, {"--timeline", options.timeline}};
  const std::pair<const char*, const std::string&> written[] = {
      {"--output", options.output}, {"--chrome-trace", options.chrome_trace}};
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
  }
  if (!options.chrome_trace.empty() && same_file(options.output, options.chrome_trace)) {
    throw ConfigError(
        str("--output and --chrome-trace are both '", options.output, "'; name two files"));
  }
}

void write_file(const std::string& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text << std::flush;
  if (!file) {
    throw Error(str("cannot write '", path, "': ", std::system_category().message(errno)));
  }
}

void run(const Options& options) {
  check_files(options);
  report::ReportInput input;
  input.log = report::read_run_log(options.log);
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  input.now = std::chrono::duration<double>(now).count();
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
  write_file(options.output, report::to_html(input));
  if (!options.chrome_trace.empty()) {
    write_file(options.chrome_trace, timeline::to_chrome_trace(input.timeline));
  }
  if (!options.quiet) {
    std::printf("%s\n", report::to_text(input).c_str());
  }
  std::printf("report: %s\n", options.output.c_str());
}

const RegisterCommand kReport({
    "report",
    "show a run: losses, pipeline, memory, traffic",
    [](CLI::App& app) {
      auto options = std::make_shared<Options>();
      app.footer("tessera train --log FILE --timeline FILE writes both files of a run.");
      app.add_option("log", options->log, "log of tessera train --log")->required();
      app.add_option("--timeline", options->timeline, "timeline file of the same run");
      app.add_option("-o,--output", options->output, "HTML file to write")->capture_default_str();
      app.add_option(
          "--chrome-trace",
          options->chrome_trace,
          "also write the timeline for chrome://tracing and Perfetto");
      app.add_option(
             "--peak-gflops",
             options->peak_gflops,
             "what all ranks together can compute, for MFU; without it, what train measured")
          ->check(CLI::PositiveNumber);
      app.add_flag("-q,--quiet", options->quiet, "no tables on the terminal");
      app.callback([options] { run(*options); });
    },
});

} // namespace
} // namespace report_command

} // namespace tessera::cli
