#include "tessera/base/files.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace tessera {

FileContent try_read_file(const std::string& path, std::uint64_t limit_bytes) {
  std::error_code failure;
  if (std::filesystem::is_directory(path, failure)) {
    return {std::nullopt, "is a folder"};
  }
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return {std::nullopt, std::system_category().message(errno)};
  }
  std::string bytes;
  std::string block(std::size_t{1} << 16U, '\0');
  while (file.read(block.data(), static_cast<std::streamsize>(block.size())), file.gcount() > 0) {
    bytes.append(block, 0, static_cast<std::size_t>(file.gcount()));
    if (bytes.size() > limit_bytes) {
      return {std::nullopt, str("has more than ", limit_bytes, " bytes")};
    }
  }
  if (file.bad()) {
    return {std::nullopt, std::system_category().message(errno)};
  }
  return {std::move(bytes), ""};
}

} // namespace tessera
