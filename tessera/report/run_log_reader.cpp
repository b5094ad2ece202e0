#include <algorithm>
#include <cerrno>
#include <cmath>
#include <ctime>
#include <sstream>
#include <system_error>

#include "tessera/base/json/read.h"
#include "tessera/report/run_log.h"
#include "tessera/report/run_log_form.h"

namespace tessera::report {

namespace {

/// Makes the message about a damaged line, which quotes it, fit for people: bytes that are no UTF-8
/// become U+FFFD, and a long message is cut.
std::string readable(const std::string& text) {
  constexpr std::size_t kLongest = 300;
  const std::string begin = text.size() > kLongest ? text.substr(0, kLongest) + "..." : text;
  return OrderedJson::parse(one_line(begin)).get<std::string>();
}

/// The error that a later program wrote the log. It ends the reading, because a report that skips
/// such lines would show a run that did not happen.
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

  /// Adds one line to the log. Throws: Error for a line that does not have the form of
  /// docs/run_log.md; the log is unchanged then.
  void read(const std::string& line, const std::string& place) {
    const OrderedJson json = parse_json(line, place);
    form::Faults faults(place);
    std::string type;
    if (!json.is_object()) {
      faults.wrong({}, json, "an object");
    } else if (json.contains("type") && json["type"].is_string()) {
      type = json["type"].get<std::string>();
    }
    if (type == "run") {
      const int version = version_of(json);
      add(record<RunFacts>(json, faults));
      version_ = version;
    } else if (type == "step") {
      add(counted<StepRecord>(json, faults));
    } else if (type == "validation") {
      log_.validations.push_back(counted<ValidationRecord>(json, faults));
    } else if (type == "traffic") {
      log_.traffic.push_back(counted<TrafficRecord>(json, faults));
    } else if (type == "sample") {
      log_.samples.push_back(counted<SampleRecord>(json, faults));
    } else if (type == "partition") {
      log_.partition_svg = record<PartitionLine>(json, faults).svg;
    } else if (type == "end") {
      add(record<EndRecord>(json, faults));
    } else {
      faults.add(
          str("'type' must be run, step, validation, traffic, sample, partition or end, found '",
              type,
              "'"));
    }
  }

 private:
  static int version_of(const OrderedJson& json) {
    std::int64_t version = 0;
    if (json.contains("version") && form::to_integer(json["version"], version) &&
        version > kNewestRunLog) {
      throw NewerVersion(
          str("the log has a run line of version ",
              version,
              "; this program reads versions 1 to ",
              kNewestRunLog,
              ": use the program that wrote it, or a later one"));
    }
    return static_cast<int>(version);
  }

  template <typename Record>
  static Record record(const OrderedJson& json, form::Faults& faults) {
    Record read;
    form::read(json, read, faults);
    return read;
  }

  /// Reads a record and counts its step from 1; version 1 counted from 0.
  template <typename Record>
  Record counted(const OrderedJson& json, form::Faults& faults) const {
    auto read = record<Record>(json, faults);
    read.step += version_ == 1 ? 1 : 0;
    return read;
  }

  void add(RunFacts run) {
    drop_from(run.first_step);
    log_.run = run;
    log_.starts.push_back({std::move(run), std::nullopt, 0, 0});
  }

  void add(StepRecord step) {
    if (!log_.steps.empty() && step.step <= log_.steps.back().step) {
      // These steps ran again although no run line says so: it must have been damaged. The newer
      // records replace the older ones.
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
  int version_ = kNewestRunLog;
};

} // namespace

RunLog parse_run_log(const std::string& text, const std::string& name) {
  RunLog log;
  Reader reader(log);
  std::size_t begin = 0;
  for (int number = 1; begin < text.size(); ++number) {
    const std::size_t end = text.find('\n', begin);
    if (end == std::string::npos) {
      // The writer ends every line, so this one was cut off when the run died.
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
