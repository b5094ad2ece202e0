#include "models/data/input/input_files.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "tessera/base/error.h"

namespace tessera::data {

namespace {

namespace fs = std::filesystem;

bool is_hidden(const fs::path& path) {
  return path.filename().string().starts_with(".");
}

std::vector<std::string> files_below(const std::string& folder) {
  std::vector<std::string> files;
  // Links to folders are not followed: they may lead in a circle.
  for (auto at = fs::recursive_directory_iterator(folder); at != fs::end(at); ++at) {
    if (is_hidden(at->path())) {
      if (at->is_directory()) {
        at.disable_recursion_pending();
      }
    } else if (at->is_regular_file()) {
      files.push_back(at->path().string());
    }
  }
  std::sort(files.begin(), files.end());
  if (files.empty()) {
    throw ConfigError(str("the folder ", folder, " has no file"));
  }
  return files;
}

} // namespace

std::vector<std::string> input_files(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  std::set<std::string> seen;
  for (const std::string& path : paths) {
    try {
      const fs::file_status status = fs::status(path);
      if (!fs::exists(status)) {
        throw ConfigError(str("cannot read ", path, ": No such file or directory"));
      }
      const auto found =
          fs::is_directory(status) ? files_below(path) : std::vector<std::string>{path};
      for (const std::string& file : found) {
        if (!seen.insert(fs::weakly_canonical(file).string()).second) {
          throw ConfigError(str(file, " is named twice; name every file once"));
        }
        files.push_back(file);
      }
    } catch (const fs::filesystem_error& error) {
      throw ConfigError(str("cannot read ", path, ": ", error.code().message()));
    }
  }
  return files;
}

std::uint64_t total_bytes(const std::vector<std::string>& files) {
  std::uint64_t sum = 0;
  for (const std::string& file : files) {
    std::error_code ignored;
    const auto size = fs::file_size(file, ignored);
    sum += ignored ? 0 : size;
  }
  return sum;
}

} // namespace tessera::data
