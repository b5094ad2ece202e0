#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::data {

/// Writes a file through a temporary file beside it, so that it appears whole or not at
/// all. Throws: ConfigError that names the file (a full disk among others).
void write_file(const std::string& path, std::string_view content);

/// A file that is written piece by piece under another name and gets its own when it is whole.
/// An unfinished file of a process that died is overwritten.
/// Threads: one at a time.
class FileWriter {
 public:
  /// The other name is the path with ".unfinished" behind it. Throws: ConfigError when it cannot be
  /// written, or another process is writing it.
  explicit FileWriter(std::string path);
  /// Removes the file unless it is finished.
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  /// Throws: ConfigError that names the file (a full disk among others); so do the others.
  void append(const void* bytes, std::size_t size);
  /// Overwrites the beginning of what was written.
  void overwrite_start(const void* bytes, std::size_t size);
  /// Syncs the file to the disk and gives it its name.
  void finish();

 private:
  void flush();
  [[noreturn]] void fail(const char* verb) const;

  std::string path_;
  std::string temporary_;
  std::string buffer_;
  int file_ = -1;
};

/// A file mapped into memory to be read: opening costs no memory, ranks of one machine share pages.
/// Threads: any thread.
class MappedFile {
 public:
  MappedFile() = default;
  /// `what` stands in messages ("token file"). Throws: ConfigError when it cannot be read, or has
  /// fewer than `least_bytes`.
  MappedFile(std::string path, const std::string& what, std::uint64_t least_bytes);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const std::string& path() const {
    return path_;
  }
  std::uint64_t size_bytes() const {
    return size_bytes_;
  }
  const unsigned char* bytes() const {
    return static_cast<const unsigned char*>(mapping_);
  }

 private:
  std::string path_;
  void* mapping_ = nullptr;
  std::uint64_t size_bytes_ = 0;
};

} // namespace tessera::data
