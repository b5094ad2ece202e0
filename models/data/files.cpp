#include "models/data/files.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>

#include <unistd.h>

#include <fcntl.h>

#include "tessera/base/error.h"

namespace tessera::data {

namespace {

[[noreturn]] void fail(const char* verb, const std::string& path) {
  throw ConfigError(str("cannot ", verb, " ", path, ": ", std::strerror(errno)));
}

} // namespace

void write_file(const std::string& path, std::string_view content) {
  const std::string temporary = path + ".tmp" + std::to_string(getpid());
  const int file = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) {
    fail("write", temporary);
  }
  std::size_t written = 0;
  bool good = true;
  while (good && written < content.size()) {
    const auto count = write(file, content.data() + written, content.size() - written);
    if (count > 0) {
      written += static_cast<std::size_t>(count);
    } else {
      good = count < 0 && errno == EINTR;
    }
  }
  good = good && fsync(file) == 0;
  const int reason = errno;
  good = close(file) == 0 && good;
  if (!good || std::rename(temporary.c_str(), path.c_str()) != 0) {
    errno = good ? errno : reason;
    const int keep = errno;
    unlink(temporary.c_str());
    errno = keep;
    fail("write", path);
  }
}

} // namespace tessera::data
