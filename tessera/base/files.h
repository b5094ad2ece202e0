#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "tessera/base/error.h"

namespace tessera {

/// Files that are read whole hold text that people or this program wrote; a larger one is a
/// mistake.
constexpr std::uint64_t kLargestFileBytes = std::uint64_t{1} << 30U;

/// The content of a file, or why it could not be read.
struct FileContent {
  std::optional<std::string> bytes;
  /// "No such file or directory", "is a folder", "has 9 bytes, more than 4": completes "cannot read
  /// 'x': ".
  std::string failure;
};

/// Reads a regular file, a pipe or a device to its end.
FileContent try_read_file(const std::string& path, std::uint64_t limit_bytes = kLargestFileBytes);

/// Returns the content of a file of at most `limit_bytes`.
/// Throws: `Failure` "cannot read 'x': " and the reason.
template <typename Failure = ConfigError>
std::string read_file(const std::string& path, std::uint64_t limit_bytes = kLargestFileBytes) {
  FileContent content = try_read_file(path, limit_bytes);
  if (!content.bytes) {
    throw Failure(str("cannot read '", path, "': ", content.failure));
  }
  return std::move(*content.bytes);
}

} // namespace tessera
