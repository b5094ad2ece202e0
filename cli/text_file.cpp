#include "cli/text_file.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "tessera/base/error.h"

namespace tessera::cli {

namespace fs = std::filesystem;

namespace {

// Returns the reason why it cannot be written, none where it was.
std::error_code written(const fs::path& path, const std::string& text) {
  errno = 0;
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  return file ? std::error_code() : std::error_code(errno, std::system_category());
}

// Returns the same for a file that appears under its name when all of it is there.
std::error_code written_aside(const fs::path& path, const std::string& text) {
  fs::path aside = path;
  aside.replace_filename("." + path.filename().string() + ".tmp");
  std::error_code failure = written(aside, text);
  if (!failure) {
    fs::rename(aside, path, failure);
  }
  if (failure) {
    std::error_code ignored;
    fs::remove(aside, ignored);
  }
  return failure;
}

} // namespace

void write_text_file(const std::string& path, const std::string& text) {
  std::error_code ignored;
  const bool special = fs::exists(path, ignored) && !fs::is_regular_file(path, ignored);
  // A link stays one: what it names is replaced.
  const fs::path target =
      fs::is_symlink(path, ignored) ? fs::weakly_canonical(path, ignored) : fs::path(path);
  const std::error_code failure = special ? written(path, text) : written_aside(target, text);
  if (failure) {
    throw Error(str("\"", path, "\" cannot be written: ", failure.message()));
  }
}

} // namespace tessera::cli
