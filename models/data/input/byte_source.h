#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

struct gzFile_s;

namespace tessera::data {

/// The bytes of a file from its beginning; those of a gzip file (told by its first bytes, several
/// members one after the other as well) are decompressed.
/// Threads: one at a time.
class ByteSource {
 public:
  /// Throws: ConfigError when the file cannot be opened.
  explicit ByteSource(const std::string& path);
  ~ByteSource();
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  const std::string& path() const {
    return path_;
  }
  /// Fills the buffer unless the file ends; how many bytes there were.
  /// Throws: ConfigError that names the file: damaged or truncated gzip, a file called .gz that is
  /// none, an error of the disk.
  std::size_t read(char* into, std::size_t size);
  /// How far the file was read. Units: bytes of the file.
  std::uint64_t position_bytes() const;

 private:
  std::string path_;
  gzFile_s* file_;
  bool begun_ = false;
};

} // namespace tessera::data
