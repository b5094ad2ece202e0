#include <cerrno>
#include <cmath>
#include <filesystem>
#include <system_error>

#include "tessera/base/json/write.h"
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
  write_line(one_line(form::write(run)));
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
