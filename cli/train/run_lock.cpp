#include "cli/train/run_lock.h"

#include <array>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <fstream>
#include <system_error>

#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fcntl.h>

#include "tessera/base/error.h"
#include "tessera/base/json/parse.h"

#include "cli/machine.h"

namespace tessera::cli {

namespace {

/// Who holds a lock, as its file says.
struct Holder {
  std::string host;
  std::int64_t process = 0;
  std::int64_t start_ticks = 0; // of the process, in clock ticks since the system's start
  std::string since; // ISO 8601, UTC

  std::string text() const {
    return str("process ", process, " on host ", host, ", started ", since);
  }
};

/// Field 22 of /proc/PID/stat, 0 when there is no such process. The name in
/// field 2 may hold blanks and brackets, so counting begins after the last ')'.
std::int64_t start_ticks_of(std::int64_t process) {
  std::ifstream file(str("/proc/", process, "/stat"));
  std::string line;
  std::getline(file, line);
  const auto bracket = line.rfind(')');
  if (bracket == std::string::npos) {
    return 0;
  }
  std::istringstream fields(line.substr(bracket + 1));
  std::string field;
  for (int number = 3; number <= 22 && fields >> field; ++number) {
  }
  return fields ? std::atoll(field.c_str()) : 0;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text.data();
}

std::string read_all(int fd) {
  std::string text(4096, '\0');
  const ssize_t got = ::pread(fd, text.data(), text.size(), 0);
  text.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
  return text;
}

/// Nothing for a file that no lock wrote whole: its writer died before.
Holder holder_of(const std::string& text) {
  Holder holder;
  const auto json = OrderedJson::parse(text, nullptr, false);
  if (!json.is_object()) {
    return holder;
  }
  try {
    holder.host = json.value("host", "");
    holder.process = json.value("process", std::int64_t{0});
    holder.start_ticks = json.value("start_ticks", std::int64_t{0});
    holder.since = json.value("since", "");
  } catch (const OrderedJson::exception&) {
    return {};
  }
  return holder;
}

bool lives(const Holder& holder) {
  return holder.process > 0 && start_ticks_of(holder.process) == holder.start_ticks;
}

} // namespace

RunLock::RunLock(std::string path, const std::string& what) : path_(std::move(path)), what_(what) {
  // A holder that ends between opening and locking leaves a file without a
  // name; then the next one is tried.
  while (!try_to_open()) {
  }
}

bool RunLock::try_to_open() {
  const auto fail = [&](const char* call) {
    const int error = errno;
    if (fd_ >= 0) {
      ::close(fd_);
    }
    throw ConfigError(
        str("cannot lock ",
            what_,
            ": ",
            path_,
            ": ",
            call,
            ": ",
            std::generic_category().message(error)));
  };
  const auto refuse = [&](const Holder& holder, const std::string& advice) {
    ::close(fd_);
    throw ConfigError(
        str(what_,
            " is in use by another run: ",
            holder.host.empty() ? "a process that is just starting" : holder.text(),
            "; ",
            advice));
  };
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd_ < 0) {
    fail("open");
  }
  const std::string here = host_name();
  const bool locked = ::flock(fd_, LOCK_EX | LOCK_NB) == 0;
  const int error = errno;
  const Holder holder = holder_of(read_all(fd_));
  if (!locked && error == EWOULDBLOCK) {
    refuse(holder, "wait for it to end, or name another place");
  }
  if (!locked && holder.host == here && lives(holder)) {
    refuse(holder, "wait for it to end, or name another place");
  }
  if (!holder.host.empty() && holder.host != here) {
    refuse(holder, str("if that run is over, remove ", path_));
  }
  struct stat opened {};
  struct stat named {};
  if (::fstat(fd_, &opened) != 0) {
    fail("fstat");
  }
  if (::stat(path_.c_str(), &named) != 0 || opened.st_ino != named.st_ino) {
    ::close(fd_);
    fd_ = -1;
    return false;
  }
  taken_from_ = holder.host.empty() ? "" : holder.text();
  const std::string mine = one_line(
      {{"host", here},
       {"process", static_cast<std::int64_t>(::getpid())},
       {"start_ticks", start_ticks_of(::getpid())},
       {"since", utc_now()}});
  if (::ftruncate(fd_, 0) != 0 ||
      ::pwrite(fd_, mine.data(), mine.size(), 0) != static_cast<ssize_t>(mine.size())) {
    fail("write");
  }
  return true;
}

RunLock::~RunLock() {
  // Before the lock goes: the next holder must not find its file removed.
  ::unlink(path_.c_str());
  ::close(fd_);
}

} // namespace tessera::cli
