#include <cerrno>
#include <cmath>
#include <filesystem>
#include <system_error>

#include "tessera/base/error.h"
#include "tessera/base/json_fields.h"
#include "tessera/report/run_log.h"

namespace tessera::report {

namespace {

using Json = OrderedJson;

constexpr int kVersion = 2; // what run_log_reader.cpp reads beside version 1

Json number(double value) {
  // JSON has neither NaN nor infinity.
  return std::isfinite(value) ? Json(value) : Json(nullptr);
}

Json object_of(const std::string& text, const char* field) {
  try {
    return text.empty() ? Json(nullptr) : Json::parse(text);
  } catch (const Json::exception& error) {
    throw Error(str("run log: ", field, " is not JSON: ", error.what()));
  }
}

/// Length of the text up to and with its last line break.
std::uintmax_t whole_lines(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::uintmax_t length = 0;
  std::string line;
  while (std::getline(file, line) && !file.eof()) {
    length += line.size() + 1;
  }
  return length;
}

} // namespace

RunLogWriter::RunLogWriter(std::string path, Mode mode) : path_(std::move(path)) {
  if (mode == Mode::kContinue && std::filesystem::exists(path_)) {
    std::error_code error;
    std::filesystem::resize_file(path_, whole_lines(path_), error);
    if (error) {
      throw Error(str("run log: cannot shorten '", path_, "': ", error.message()));
    }
  }
  file_.open(path_, std::ios::binary | (mode == Mode::kNew ? std::ios::trunc : std::ios::app));
  if (!file_) {
    throw Error(str(
        "run log: cannot open '", path_, "' for writing: ", std::system_category().message(errno)));
  }
}

void RunLogWriter::write_line(const std::string& line) {
  errno = 0;
  file_ << line << '\n' << std::flush;
  if (!file_) {
    throw Error(
        str("run log: cannot write to '",
            path_,
            "': ",
            errno != 0 ? std::system_category().message(errno) : std::string("the stream failed")));
  }
}

void RunLogWriter::write(const RunFacts& run) {
  write_line(one_line(
      {{"type", "run"},
       {"version", kVersion},
       {"run_id", run.run_id},
       {"model", run.model},
       {"started", run.started},
       {"command", run.command},
       {"program", run.program},
       {"data", run.data},
       {"precision", run.precision},
       {"schedule", run.schedule},
       {"world_size", run.world_size},
       {"pipeline_parallel_degree", run.pipeline_parallel_degree},
       {"tensor_parallel_degree", run.tensor_parallel_degree},
       {"data_parallel_degree", run.data_parallel_degree},
       {"microbatches", run.microbatches},
       {"parameters", run.parameters},
       {"tokens_per_step", run.tokens_per_step},
       {"first_step", run.first_step},
       {"steps", run.steps},
       {"flops_per_token", run.flops_per_token},
       {"peak_flops_per_second", run.peak_flops_per_second},
       {"hosts", run.hosts},
       {"config", object_of(run.config_json, "config")},
       {"plan", object_of(run.plan_json, "plan")}}));
}

void RunLogWriter::write(const StepRecord& step) {
  Json line = {
      {"type", "step"},
      {"step", step.step},
      {"loss", number(step.loss)},
      {"tokens_per_second", step.tokens_per_second},
      {"step_seconds", step.step_seconds},
      {"lr", step.learning_rate}};
  if (step.grad_norm) {
    line["grad_norm"] = number(*step.grad_norm);
  }
  if (step.bubble_share) {
    line["bubble_share"] = *step.bubble_share;
  }
  if (step.elapsed_seconds) {
    line["elapsed_seconds"] = *step.elapsed_seconds;
  }
  line["memory_bytes"] = step.memory_bytes;
  if (!step.skipped.empty()) {
    line["skipped"] = step.skipped;
  }
  write_line(one_line(line));
}

void RunLogWriter::write(const ValidationRecord& validation) {
  write_line(one_line(
      {{"type", "validation"}, {"step", validation.step}, {"loss", number(validation.loss)}}));
}

void RunLogWriter::write(const TrafficRecord& traffic) {
  write_line(one_line(
      {{"type", "traffic"},
       {"step", traffic.step},
       {"group", traffic.group},
       {"calls", traffic.calls},
       {"bytes", traffic.bytes}}));
}

void RunLogWriter::write(const SampleRecord& sample) {
  write_line(one_line(
      {{"type", "sample"},
       {"step", sample.step},
       {"prompt", sample.prompt},
       {"text", sample.text}}));
}

void RunLogWriter::write(const EndRecord& end) {
  write_line(one_line(
      {{"type", "end"},
       {"state", end.state},
       {"step", end.step},
       {"elapsed_seconds", end.elapsed_seconds},
       {"reason", end.reason}}));
}

void RunLogWriter::write_partition(const std::string& svg) {
  write_line(one_line({{"type", "partition"}, {"svg", svg}}));
}

} // namespace tessera::report
