#include <algorithm>
#include <cerrno>
#include <cmath>
#include <ctime>
#include <sstream>
#include <system_error>

#include "tessera/base/error.h"
#include "tessera/base/json/parse.h"
#include "tessera/base/json_fields.h"
#include "tessera/report/run_log.h"

namespace tessera::report {

namespace {

using Json = OrderedJson;

constexpr int kNewest = 2; // what run_log_writer.cpp writes

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

double not_negative(const JsonFields& fields, const char* key) {
  const double value = fields.number(key);
  if (!(value >= 0)) {
    fields.fail(str("'", key, "' must not be negative, found ", value));
  }
  return value;
}

/// A message about a damaged line quotes it: bytes that are no UTF-8 become U+FFFD, and a long
/// quotation is cut.
std::string readable(const std::string& text) {
  constexpr std::size_t kLongest = 300;
  const std::string begin = text.size() > kLongest ? text.substr(0, kLongest) + "..." : text;
  return Json::parse(one_line(begin)).get<std::string>();
}

/// The log was written by a later program: skipping its lines would show a run that never was.
class NewerVersion : public Error {
 public:
  using Error::Error;
};

class Reader {
 public:
  explicit Reader(RunLog& log) : log_(log) {}

  bool any_run() const {
    return !log_.starts.empty();
  }

  /// Throws: Error for a line that is not as docs/run_log.md says; the log is unchanged then.
  void read(const std::string& line, const std::string& place) {
    const Json json = parse_json(line, place);
    const JsonFields fields(json, place);
    const std::string type = fields.text("type");
    if (type == "run") {
      add(read_run(fields));
    } else if (type == "step") {
      add(read_step(fields));
    } else if (type == "validation") {
      fields.allow_only({"type", "step", "loss"});
      log_.validations.push_back({step_of(fields), fields.number_or_null("loss")});
    } else if (type == "traffic") {
      fields.allow_only({"type", "step", "group", "calls", "bytes"});
      log_.traffic.push_back(
          {step_of(fields),
           fields.text("group"),
           fields.integer("calls"),
           fields.integer("bytes")});
    } else if (type == "sample") {
      fields.allow_only({"type", "step", "prompt", "text"});
      log_.samples.push_back({step_of(fields), fields.text("prompt"), fields.text("text")});
    } else if (type == "partition") {
      fields.allow_only({"type", "svg"});
      log_.partition_svg = fields.text("svg");
    } else if (type == "end") {
      add(read_end(fields));
    } else {
      fields.fail(
          str("'type' must be run, step, validation, traffic, sample, partition or end, found '",
              type,
              "'"));
    }
  }

 private:
  // Version 1 counted from 0.
  std::int64_t step_of(const JsonFields& fields, const char* key = "step") const {
    constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max() - 1;
    return fields.integer(key, 0, kMost) + (version_ == 1 ? 1 : 0);
  }

  RunFacts read_run(const JsonFields& fields) {
    const int version = fields.small_integer("version", 1);
    if (version > kNewest) {
      throw NewerVersion(
          str("the log has a run line of version ",
              version,
              "; this program reads versions 1 to ",
              kNewest,
              ": use the program that wrote it, or a later one"));
    }
    fields.allow_only(
        {"type",
         "version",
         "run_id",
         "model",
         "started",
         "command",
         "program",
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
         "steps",
         "flops_per_token",
         "peak_flops_per_second",
         "hosts",
         "config",
         "plan"});
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
    run.hosts = fields.texts("hosts");
    run.config_json = text_of(fields, "config");
    run.plan_json = text_of(fields, "plan");
    if (version == 1) {
      run.first_step = fields.integer("first_step") + 1;
    } else {
      run.first_step = fields.integer("first_step", 1);
      run.run_id = fields.text("run_id");
      run.command = fields.texts("command");
      run.program = fields.text("program");
      run.steps = fields.integer("steps");
      run.flops_per_token = not_negative(fields, "flops_per_token");
      run.peak_flops_per_second = not_negative(fields, "peak_flops_per_second");
    }
    version_ = version;
    return run;
  }

  StepRecord read_step(const JsonFields& fields) const {
    fields.allow_only(
        {"type",
         "step",
         "loss",
         "tokens_per_second",
         "step_seconds",
         "lr",
         "grad_norm",
         "bubble_share",
         "elapsed_seconds",
         "memory_bytes",
         "skipped"});
    StepRecord step;
    step.step = step_of(fields);
    step.loss = fields.number_or_null("loss");
    step.tokens_per_second = fields.number("tokens_per_second");
    step.step_seconds = fields.number("step_seconds");
    step.learning_rate = fields.number("lr");
    if (fields.has("grad_norm")) {
      step.grad_norm = fields.number_or_null("grad_norm");
    }
    if (fields.has("bubble_share")) {
      step.bubble_share = fields.number("bubble_share");
      if (!(*step.bubble_share >= 0 && *step.bubble_share <= 1)) {
        fields.fail(str("'bubble_share' must be from 0 to 1, found ", *step.bubble_share));
      }
    }
    if (fields.has("elapsed_seconds")) {
      step.elapsed_seconds = not_negative(fields, "elapsed_seconds");
    }
    step.memory_bytes = fields.integers("memory_bytes");
    if (fields.has("skipped")) {
      step.skipped = fields.text("skipped");
    }
    return step;
  }

  static EndRecord read_end(const JsonFields& fields) {
    fields.allow_only({"type", "state", "step", "elapsed_seconds", "reason"});
    EndRecord end;
    end.state = fields.text("state");
    if (end.state != "finished" && end.state != "stopped" && end.state != "failed") {
      fields.fail(str("'state' must be finished, stopped or failed, found '", end.state, "'"));
    }
    end.step = fields.integer("step");
    end.elapsed_seconds = not_negative(fields, "elapsed_seconds");
    end.reason = fields.text("reason");
    return end;
  }

  void add(RunFacts run) {
    drop_from(run.first_step);
    log_.run = run;
    log_.starts.push_back({std::move(run), std::nullopt, 0, 0});
  }

  void add(StepRecord step) {
    if (!log_.steps.empty() && step.step <= log_.steps.back().step) {
      // The run line that announced these steps again is damaged; what ran last counts.
      drop_from(step.step);
    }
    if (any_run()) {
      Start& start = log_.starts.back();
      start.last_step = step.step;
      start.elapsed_seconds = step.elapsed_seconds.value_or(start.elapsed_seconds);
    }
    log_.steps.push_back(std::move(step));
  }

  void add(EndRecord end) {
    if (any_run()) {
      log_.starts.back().elapsed_seconds = end.elapsed_seconds;
      log_.starts.back().end = std::move(end);
    }
  }

  /// Drops the records of `first_step` and of all later steps.
  void drop_from(std::int64_t first_step) {
    const auto again = [first_step](const auto& record) { return record.step >= first_step; };
    std::erase_if(log_.steps, again);
    std::erase_if(log_.validations, again);
    std::erase_if(log_.traffic, again);
    std::erase_if(log_.samples, again);
  }

  RunLog& log_;
  int version_ = kNewest;
};

} // namespace

RunLog parse_run_log(const std::string& text, const std::string& name) {
  RunLog log;
  Reader reader(log);
  std::size_t begin = 0;
  for (int number = 1; begin < text.size(); ++number) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) {
      // A writer ends every line: this one was cut off as the run died.
      log.torn = true;
      break;
    }
    try {
      reader.read(text.substr(begin, end - begin), str(name, ": line ", number));
    } catch (const NewerVersion& error) {
      throw Error(str(name, ": ", error.what()));
    } catch (const Error& error) {
      if (log.bad_lines++ == 0) {
        log.first_bad_line = readable(error.what());
      }
    }
    begin = end + 1;
  }
  if (!reader.any_run()) {
    throw Error(
        str(name,
            ": no line of type 'run' could be read: not the log of a run",
            log.first_bad_line.empty() ? "" : "; " + log.first_bad_line));
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

std::optional<double> seconds_of_utc(const std::string& time) {
  std::tm parts{};
  const char* rest = ::strptime(time.c_str(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  if (rest == nullptr || *rest != '\0') {
    return std::nullopt;
  }
  return static_cast<double>(::timegm(&parts));
}

std::string utc_of_seconds(double seconds) {
  if (!(std::abs(seconds) < 1e12)) {
    return "";
  }
  const auto whole = static_cast<std::time_t>(seconds);
  std::tm parts{};
  ::gmtime_r(&whole, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

} // namespace tessera::report
