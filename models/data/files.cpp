#include "models/data/files.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fcntl.h>

#include "tessera/base/error.h"

namespace tessera::data {

namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

[[noreturn]] void fail_to(const char* verb, const std::string& path) {
  throw ConfigError(str("cannot ", verb, " ", path, ": ", std::strerror(errno)));
}

bool write_all(int file, const char* bytes, std::size_t size) {
  while (size > 0) {
    const auto count = write(file, bytes, size);
    if (count > 0) {
      bytes += count;
      size -= static_cast<std::size_t>(count);
    } else if (count == 0 || errno != EINTR) {
      return false;
    }
  }
  return true;
}

} // namespace

void write_file(const std::string& path, std::string_view content) {
  const std::string temporary = path + ".tmp" + std::to_string(getpid());
  const int file = open(temporary.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file < 0) {
    fail_to("write", temporary);
  }
  bool good = write_all(file, content.data(), content.size()) && fsync(file) == 0;
  const int reason = errno;
  good = close(file) == 0 && good;
  if (!good || std::rename(temporary.c_str(), path.c_str()) != 0) {
    errno = good ? errno : reason;
    const int keep = errno;
    unlink(temporary.c_str());
    errno = keep;
    fail_to("write", path);
  }
}

FileWriter::FileWriter(std::string path)
    : path_(std::move(path)),
      temporary_(path_ + ".unfinished"),
      // Not truncated before the lock is there: another process may be writing.
      file_(open(temporary_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666)) {
  if (file_ < 0) {
    fail_to("write", temporary_);
  }
  const bool locked = flock(file_, LOCK_EX | LOCK_NB) == 0;
  // The other process may have given the finished file its name in between.
  struct stat mine {};
  struct stat named {};
  const bool same = locked && fstat(file_, &mine) == 0 && stat(temporary_.c_str(), &named) == 0 &&
                    mine.st_ino == named.st_ino && mine.st_dev == named.st_dev;
  if (!same || ftruncate(file_, 0) != 0) {
    const bool taken = locked ? !same : errno == EWOULDBLOCK;
    const int keep = errno;
    close(file_);
    errno = keep;
    if (taken) {
      throw ConfigError(
          str("another process is writing ", temporary_, "; wait for it, or name another folder"));
    }
    fail_to("write", temporary_);
  }
}

FileWriter::~FileWriter() {
  if (file_ >= 0) {
    unlink(temporary_.c_str());
    close(file_);
  }
}

void FileWriter::fail(const char* verb) const {
  fail_to(verb, temporary_);
}

void FileWriter::append(const void* bytes, std::size_t size) {
  buffer_.append(static_cast<const char*>(bytes), size);
  if (buffer_.size() >= kBufferBytes) {
    flush();
  }
}

void FileWriter::flush() {
  if (!write_all(file_, buffer_.data(), buffer_.size())) {
    fail("write");
  }
  buffer_.clear();
}

void FileWriter::overwrite_start(const void* bytes, std::size_t size) {
  flush();
  if (lseek(file_, 0, SEEK_SET) != 0 || !write_all(file_, static_cast<const char*>(bytes), size) ||
      lseek(file_, 0, SEEK_END) < 0) {
    fail("write");
  }
}

void FileWriter::finish() {
  flush();
  if (fsync(file_) != 0 || std::rename(temporary_.c_str(), path_.c_str()) != 0) {
    fail("write");
  }
  close(file_);
  file_ = -1;
}

MappedFile::MappedFile(std::string path, const std::string& what, std::uint64_t least_bytes)
    : path_(std::move(path)) {
  const int file = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat status {};
  if (file < 0 || fstat(file, &status) != 0) {
    const int reason = errno;
    if (file >= 0) {
      close(file);
    }
    throw ConfigError(
        str("cannot open ",
            what,
            " ",
            path_,
            ": ",
            std::strerror(reason),
            "; `tessera data prepare` writes it"));
  }
  size_bytes_ = static_cast<std::uint64_t>(status.st_size);
  if (size_bytes_ < least_bytes) {
    close(file);
    throw ConfigError(
        str(path_,
            " is no ",
            what,
            ": it has ",
            size_bytes_,
            " bytes, its header alone has ",
            least_bytes));
  }
  mapping_ = mmap(nullptr, size_bytes_, PROT_READ, MAP_SHARED, file, 0);
  const int reason = errno;
  close(file);
  if (mapping_ == MAP_FAILED) {
    mapping_ = nullptr;
    throw ConfigError(str("cannot map ", what, " ", path_, ": ", std::strerror(reason)));
  }
}

MappedFile::~MappedFile() {
  if (mapping_ != nullptr) {
    munmap(mapping_, size_bytes_);
  }
}

MappedFile::MappedFile(MappedFile&& other) noexcept {
  *this = std::move(other);
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(mapping_, other.mapping_);
  std::swap(size_bytes_, other.size_bytes_);
  return *this;
}

} // namespace tessera::data
