#include "tessera/report/run_log.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <system_error>

#include "tessera/base/error.h"
#include "tessera/base/json.h"
#include "tessera/base/json_fields.h"

namespace tessera::report {

namespace {

using Json = OrderedJson;

constexpr int kVersion = 1;

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

std::string text_of(const JsonFields& fields, const char* key) {
  const Json& value = fields.at(key);
  if (value.is_null()) {
    return "";
  }
  if (!value.is_object()) {
    fields.fail(str("'", key, "' must be an object or null"));
  }
  return value.dump(2, ' ', false, Json::error_handler_t::replace);
}

RunFacts read_run(const JsonFields& fields) {
  fields.allow_only(
      {"type",
       "version",
       "model",
       "started",
       "data",
       "precision",
       "schedule",
       "world_size",
       "pipeline_parallel_degree",
       "tensor_parallel_degree",
       "data_parallel_degree",
       "microbatches",
       "parameters",
       "tokens_per_step",
       "first_step",
       "hosts",
       "config",
       "plan"});
  const int version = fields.small_integer("version");
  if (version != kVersion) {
    fields.fail(str("version ", version, " is not known; this program reads ", kVersion));
  }
  RunFacts run;
  run.model = fields.text("model");
  run.started = fields.text("started");
  run.data = fields.text("data");
  run.precision = fields.text("precision");
  run.schedule = fields.text("schedule");
  run.world_size = fields.small_integer("world_size", 1);
  run.pipeline_parallel_degree = fields.small_integer("pipeline_parallel_degree", 1);
  run.tensor_parallel_degree = fields.small_integer("tensor_parallel_degree", 1);
  run.data_parallel_degree = fields.small_integer("data_parallel_degree", 1);
  run.microbatches = fields.small_integer("microbatches", 1);
  run.parameters = fields.integer("parameters");
  run.tokens_per_step = fields.integer("tokens_per_step");
  run.first_step = fields.integer("first_step");
  run.hosts = fields.texts("hosts");
  run.config_json = text_of(fields, "config");
  run.plan_json = text_of(fields, "plan");
  return run;
}

StepRecord read_step(const JsonFields& fields) {
  fields.allow_only(
      {"type",
       "step",
       "loss",
       "tokens_per_second",
       "step_seconds",
       "lr",
       "grad_norm",
       "bubble_share",
       "memory_bytes"});
  StepRecord step;
  step.step = fields.integer("step");
  step.loss = fields.number_or_null("loss");
  step.tokens_per_second = fields.number("tokens_per_second");
  step.step_seconds = fields.number("step_seconds");
  step.learning_rate = fields.number("lr");
  if (fields.has("grad_norm")) {
    step.grad_norm = fields.number_or_null("grad_norm");
  }
  if (fields.has("bubble_share")) {
    step.bubble_share = fields.number("bubble_share");
    if (*step.bubble_share < 0 || *step.bubble_share > 1) {
      fields.fail(str("'bubble_share' must be from 0 to 1, found ", *step.bubble_share));
    }
  }
  step.memory_bytes = fields.integers("memory_bytes");
  return step;
}

ValidationRecord read_validation(const JsonFields& fields) {
  fields.allow_only({"type", "step", "loss"});
  return {fields.integer("step"), fields.number_or_null("loss")};
}

TrafficRecord read_traffic(const JsonFields& fields) {
  fields.allow_only({"type", "step", "group", "calls", "bytes"});
  return {
      fields.integer("step"),
      fields.text("group"),
      fields.integer("calls"),
      fields.integer("bytes")};
}

SampleRecord read_sample(const JsonFields& fields) {
  fields.allow_only({"type", "step", "prompt", "text"});
  return {fields.integer("step"), fields.text("prompt"), fields.text("text")};
}

template <typename Record>
void drop_from(std::vector<Record>& records, std::int64_t first_step) {
  records.erase(
      std::remove_if(
          records.begin(),
          records.end(),
          [first_step](const Record& record) { return record.step >= first_step; }),
      records.end());
}

void read_line(const Json& json, const std::string& place, RunLog& log) {
  const JsonFields fields(json, place);
  const std::string type = fields.text("type");
  if (type == "run") {
    log.run = read_run(fields);
    drop_from(log.steps, log.run.first_step);
    drop_from(log.validations, log.run.first_step);
    drop_from(log.traffic, log.run.first_step);
    drop_from(log.samples, log.run.first_step);
  } else if (type == "step") {
    log.steps.push_back(read_step(fields));
  } else if (type == "validation") {
    log.validations.push_back(read_validation(fields));
  } else if (type == "traffic") {
    log.traffic.push_back(read_traffic(fields));
  } else if (type == "sample") {
    log.samples.push_back(read_sample(fields));
  } else if (type == "partition") {
    fields.allow_only({"type", "svg"});
    log.partition_svg = fields.text("svg");
  } else {
    fields.fail(
        str("'type' must be run, step, validation, traffic, sample or "
            "partition, found '",
            type,
            "'"));
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
       {"model", run.model},
       {"started", run.started},
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
  line["memory_bytes"] = step.memory_bytes;
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

void RunLogWriter::write_partition(const std::string& svg) {
  write_line(one_line({{"type", "partition"}, {"svg", svg}}));
}

RunLog parse_run_log(const std::string& text, const std::string& name) {
  RunLog log;
  bool any_run = false;
  std::size_t begin = 0;
  for (int number = 1; begin < text.size(); ++number) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) {
      // A writer ends every line: this one was cut off as the run died.
      log.torn = true;
      break;
    }
    const std::string place = str(name, ": line ", number);
    const Json json = parse_json(std::string_view(text).substr(begin, end - begin), place);
    read_line(json, place, log);
    any_run = any_run || json.at("type") == "run";
    begin = end + 1;
  }
  if (!any_run) {
    throw Error(
        str(name,
            ": no line of type 'run': not the log of a run (tessera train "
            "--log writes one)"));
  }
  return log;
}

RunLog read_run_log(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw Error(str("run log: cannot open '", path, "': ", std::system_category().message(errno)));
  }
  std::ostringstream text;
  text << file.rdbuf();
  return parse_run_log(text.str(), path);
}

} // namespace tessera::report
