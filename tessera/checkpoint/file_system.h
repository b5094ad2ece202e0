#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include "tessera/checkpoint/checksum.h"

namespace tessera::checkpoint {

/// Performs every call that writes a checkpoint, with the meaning, return values and errno of the
/// POSIX call of that name. A test replaces it to fail or to die at any one of them.
///
/// Threads: any thread. Not collective.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  /// Creates an empty file, open for writing; truncates an old one.
  virtual int create(const std::string& path);
  virtual ssize_t write(int fd, const void* data, std::size_t bytes);
  virtual int sync(int fd);
  virtual int close(int fd);
  virtual int rename(const std::string& from, const std::string& to);
  virtual int make_directory(const std::string& path);
  virtual int remove_file(const std::string& path);
  virtual int remove_directory(const std::string& path);
  /// Makes renames, creations and removals in this folder durable.
  virtual int sync_directory(const std::string& path);
  /// Returns the names in a folder without "." and "..", ascending; nullopt with errno when it
  /// cannot be read.
  virtual std::optional<std::vector<std::string>> list(const std::string& path);
};

/// Returns the machine's own file system.
FileSystem& real_file_system();

/// Returns "directory/name".
std::string join(const std::string& directory, const std::string& name);

/// Returns whether a folder exists. It only reads, so it is no call of FileSystem.
bool is_directory(const std::string& path);

/// Creates a folder and its parents (mkdir -p). Throws: CheckpointError naming the folder and the
/// system's reason.
void make_directories(FileSystem& files, const std::string& path);

/// Removes a folder of plain files. Returns false and sets errno when part of it remains.
bool remove_tree(FileSystem& files, const std::string& path);

/// The size and checksum of a file as written.
struct FileRecord {
  std::uint64_t size_bytes = 0;
  std::uint64_t checksum = 0;
};

/// Writes a file that appears under its name whole or not at all: it is written under a temporary
/// name in the same folder, synced, renamed, and the folder is synced. Without `commit` the
/// temporary file is removed.
///
/// Throws (all): CheckpointError naming the file, the call and the reason.
/// Threads: one object, one thread. Not collective.
class AtomicFile {
 public:
  AtomicFile(FileSystem& files, std::string path);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t bytes);
  void write(std::string_view text) {
    write(text.data(), text.size());
  }
  FileRecord commit();

 private:
  [[noreturn]] void fail(const char* call) const;

  FileSystem& files_;
  std::string path_;
  std::string temporary_;
  int fd_ = -1;
  bool renamed_ = false;
  Checksum checksum_;
  std::uint64_t size_bytes_ = 0;
};

/// Writes a whole small file atomically.
FileRecord write_file(FileSystem& files, const std::string& path, std::string_view content);

/// A file open for reading at any position; the destructor closes it.
/// Throws (all): CheckpointError naming the file and the reason.
/// Threads: any thread. Not collective.
class InputFile {
 public:
  explicit InputFile(std::string path);
  ~InputFile();
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  const std::string& path() const {
    return path_;
  }
  std::uint64_t size_bytes() const {
    return size_bytes_;
  }
  /// Reads exactly `bytes` bytes from `offset` on.
  void read(std::uint64_t offset, void* to, std::size_t bytes) const;

 private:
  std::string path_;
  int fd_ = -1;
  std::uint64_t size_bytes_ = 0;
};

/// Returns the content of a file. Throws: CheckpointError, also when the file is larger than
/// `limit_bytes`.
std::string read_file(const std::string& path, std::uint64_t limit_bytes = std::uint64_t{1} << 30U);

/// Returns the size and checksum of a file as it is on disk.
FileRecord measure_file(const std::string& path);

} // namespace tessera::checkpoint
