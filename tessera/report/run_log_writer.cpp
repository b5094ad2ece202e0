#include <cerrno>
#include <cmath>
#include <filesystem>
#include <system_error>
#include <utility>

#include "tessera/base/json/write.h"
#include "tessera/base/log.h"
#include "tessera/report/run_log.h"
#include "tessera/report/run_log_form.h"

namespace tessera::report {

namespace {

/// Returns the bytes of the file up to and including its last line break.
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
  std::error_code error;
  whole_ = std::filesystem::file_size(path_, error);
  whole_ = error ? 0 : whole_;
}

// A line that was written in part is cut off again.
bool RunLogWriter::append(const std::string& line) {
  errno = 0;
  file_ << line << '\n' << std::flush;
  if (file_) {
    whole_ += line.size() + 1;
    return true;
  }
  const int reason = errno;
  file_.close();
  file_.clear();
  std::error_code error;
  if (std::filesystem::is_regular_file(path_, error)) {
    std::filesystem::resize_file(path_, whole_, error);
  }
  file_.open(path_, std::ios::binary | std::ios::app);
  errno = reason;
  return false;
}

void RunLogWriter::write_line(const std::string& line) {
  if (append(line) || std::exchange(warned_, true)) {
    return;
  }
  log::warning(
      str("run log: cannot write to '",
          path_,
          "': ",
          errno != 0 ? std::system_category().message(errno) : std::string("the stream failed"),
          "; training goes on, and the log lacks what does not fit"));
}

void RunLogWriter::write(const RunFacts& run) {
  if (!append(one_line(form::write(run)))) {
    throw Error(
        str("run log: cannot write to '",
            path_,
            "': ",
            errno != 0 ? std::system_category().message(errno) : std::string("the stream failed")));
  }
}

void RunLogWriter::write(const StepRecord& step) {
  write_line(one_line(form::write(step)));
}

void RunLogWriter::write(const ValidationRecord& validation) {
  write_line(one_line(form::write(validation)));
}

void RunLogWriter::write(const TrafficRecord& traffic) {
  write_line(one_line(form::write(traffic)));
}

void RunLogWriter::write(const SampleRecord& sample) {
  write_line(one_line(form::write(sample)));
}

void RunLogWriter::write(const EndRecord& end) {
  write_line(one_line(form::write(end)));
}

void RunLogWriter::write_partition(const std::string& svg) {
  write_line(one_line(form::write(PartitionLine{svg})));
}

} // namespace tessera::report
