#include "tessera/checkpoint/file_system.h"

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include <sys/stat.h>
#include <unistd.h>

#include <dirent.h>
#include <fcntl.h>

#include "tessera/base/error.h"

namespace tessera::checkpoint {

namespace {

std::string reason(int error) {
  return std::generic_category().message(error);
}

std::string parent_of(const std::string& path) {
  const auto slash = path.find_last_of('/');
  if (slash == std::string::npos) {
    return ".";
  }
  return slash == 0 ? "/" : path.substr(0, slash);
}

} // namespace

bool is_directory(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

int FileSystem::create(const std::string& path) {
  return ::open(path.c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0666);
}

ssize_t FileSystem::write(int fd, const void* data, std::size_t bytes) {
  return ::write(fd, data, bytes);
}

int FileSystem::sync(int fd) {
  return ::fsync(fd);
}

int FileSystem::close(int fd) {
  return ::close(fd);
}

int FileSystem::rename(const std::string& from, const std::string& to) {
  return ::rename(from.c_str(), to.c_str());
}

int FileSystem::make_directory(const std::string& path) {
  return ::mkdir(path.c_str(), 0777);
}

int FileSystem::remove_file(const std::string& path) {
  return ::unlink(path.c_str());
}

int FileSystem::remove_directory(const std::string& path) {
  return ::rmdir(path.c_str());
}

int FileSystem::sync_directory(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) {
    return -1;
  }
  const int result = ::fsync(fd);
  const int error = errno;
  ::close(fd);
  errno = error;
  return result;
}

std::optional<std::vector<std::string>> FileSystem::list(const std::string& path) {
  DIR* directory = ::opendir(path.c_str());
  if (directory == nullptr) {
    return std::nullopt;
  }
  std::vector<std::string> names;
  // Only errno distinguishes an error of readdir from the end. No other thread uses this DIR.
  errno = 0;
  // NOLINTNEXTLINE(concurrency-mt-unsafe)
  while (const dirent* entry = ::readdir(directory)) {
    const std::string name = static_cast<const char*>(entry->d_name);
    if (name != "." && name != "..") {
      names.push_back(name);
    }
    errno = 0;
  }
  const int error = errno;
  ::closedir(directory);
  errno = error;
  if (error != 0) {
    return std::nullopt;
  }
  std::sort(names.begin(), names.end());
  return names;
}

FileSystem& real_file_system() {
  static FileSystem files;
  return files;
}

std::string join(const std::string& directory, const std::string& name) {
  return directory.empty() || directory.back() == '/' ? directory + name : directory + "/" + name;
}

void make_directories(FileSystem& files, const std::string& path) {
  if (path.empty() || is_directory(path)) {
    return;
  }
  const std::string parent = parent_of(path);
  if (parent != path) {
    make_directories(files, parent);
  }
  // Another process may make it at the same time.
  if (files.make_directory(path) != 0 && errno != EEXIST) {
    throw CheckpointError(str("cannot make the folder ", path, ": ", reason(errno)));
  }
  if (!is_directory(path)) {
    throw CheckpointError(str(path, " is needed as a folder, but is a file; give another path"));
  }
  if (files.sync_directory(parent) != 0) {
    throw CheckpointError(str("cannot sync the folder ", parent, ": ", reason(errno)));
  }
}

bool remove_tree(FileSystem& files, const std::string& path) {
  const auto names = files.list(path);
  if (!names) {
    return errno == ENOENT;
  }
  int error = 0;
  for (const auto& name : *names) {
    if (files.remove_file(join(path, name)) != 0 && errno != ENOENT) {
      error = errno;
    }
  }
  if (files.remove_directory(path) != 0 && errno != ENOENT && error == 0) {
    error = errno;
  }
  errno = error;
  return error == 0;
}

AtomicFile::AtomicFile(FileSystem& files, std::string path)
    : files_(files), path_(std::move(path)) {
  const std::string parent = parent_of(path_);
  const auto slash = path_.find_last_of('/');
  temporary_ = join(parent, "." + path_.substr(slash == std::string::npos ? 0 : slash + 1));
  temporary_ += ".tmp";
  fd_ = files_.create(temporary_);
  if (fd_ < 0) {
    fail("create");
  }
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) {
    files_.close(fd_);
  }
  if (!renamed_) {
    files_.remove_file(temporary_);
  }
}

void AtomicFile::fail(const char* call) const {
  const int error = errno;
  throw CheckpointError(str("cannot write ", path_, ": ", call, " failed: ", reason(error)));
}

void AtomicFile::write(const void* data, std::size_t bytes) {
  // Pieces are small enough that hashed bytes are still in the cache when they are written.
  constexpr std::size_t kChunkBytes = std::size_t{1} << 18U;
  const auto* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = files_.write(fd_, from, std::min(bytes, kChunkBytes));
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      errno = written == 0 ? ENOSPC : errno;
      fail("write");
    }
    const auto count = static_cast<std::size_t>(written);
    checksum_.update(from, count);
    size_bytes_ += count;
    from += count;
    bytes -= count;
  }
}

FileRecord AtomicFile::commit() {
  if (files_.sync(fd_) != 0) {
    fail("fsync");
  }
  // The file is closed whatever close returns; network file systems report late errors here.
  const int closed = files_.close(std::exchange(fd_, -1));
  if (closed != 0) {
    fail("close");
  }
  if (files_.rename(temporary_, path_) != 0) {
    fail("rename");
  }
  renamed_ = true;
  if (files_.sync_directory(parent_of(path_)) != 0) {
    fail("fsync of the folder");
  }
  return {size_bytes_, checksum_.value()};
}

FileRecord write_file(FileSystem& files, const std::string& path, std::string_view content) {
  AtomicFile file(files, path);
  file.write(content);
  return file.commit();
}

InputFile::InputFile(std::string path) : path_(std::move(path)) {
  fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat info {};
  if (fd_ < 0 || ::fstat(fd_, &info) != 0) {
    const int error = errno;
    if (fd_ >= 0) {
      ::close(fd_);
    }
    throw CheckpointError(str("cannot read ", path_, ": ", reason(error)));
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd_);
    throw CheckpointError(str("cannot read ", path_, ": not a plain file"));
  }
  size_bytes_ = static_cast<std::uint64_t>(info.st_size);
}

InputFile::~InputFile() {
  ::close(fd_);
}

void InputFile::read(std::uint64_t offset, void* to, std::size_t bytes) const {
  auto* at = static_cast<char*>(to);
  while (bytes > 0) {
    const ssize_t got = ::pread(fd_, at, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      throw CheckpointError(str("cannot read ", path_, ": ", reason(errno)));
    }
    if (got == 0) {
      throw CheckpointError(
          str("cannot read ",
              path_,
              ": it ends at byte ",
              offset,
              ", ",
              bytes,
              " bytes too early; the file is torn"));
    }
    at += got;
    offset += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::size_t>(got);
  }
}

std::string read_file(const std::string& path, std::uint64_t limit_bytes) {
  const InputFile file(path);
  if (file.size_bytes() > limit_bytes) {
    throw CheckpointError(
        str(path,
            " has ",
            file.size_bytes(),
            " bytes; at most ",
            limit_bytes,
            " are expected in such a file"));
  }
  std::string content(file.size_bytes(), '\0');
  file.read(0, content.data(), content.size());
  return content;
}

FileRecord measure_file(const std::string& path) {
  const InputFile file(path);
  Checksum checksum;
  std::vector<char> chunk(std::size_t{1} << 18U);
  for (std::uint64_t at = 0; at < file.size_bytes();) {
    const auto bytes =
        static_cast<std::size_t>(std::min<std::uint64_t>(chunk.size(), file.size_bytes() - at));
    file.read(at, chunk.data(), bytes);
    checksum.update(chunk.data(), bytes);
    at += bytes;
  }
  return {file.size_bytes(), checksum.value()};
}

} // namespace tessera::checkpoint
